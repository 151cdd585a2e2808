"""Policies from disk and back: number formats, attention, devices, and what cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from resume_worker import policy
from safetensors.torch import load_file
from torch import Tensor

from algos.training.loading import context_of, load_policy, save_policy
from algos.training.policy import CausalLMPolicy


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loading") / "model"
    save_policy(policy(), folder)
    return folder


def scores(of: CausalLMPolicy) -> Tensor:
    """Log-probs of some ids."""
    torch.manual_seed(0)
    ids = torch.randint(of.vocabulary, (3, 20))
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[:, 0] = False
    with torch.no_grad():
        return of(ids, torch.full((3,), 20), mask).logprobs


def test_what_was_saved_is_what_is_loaded(saved: Path) -> None:
    assert torch.equal(scores(load_policy(saved)), scores(policy()))
    assert (saved / "model.safetensors").is_file()
    assert context_of(load_policy(saved)) == json.loads((saved / "config.json").read_text())["max_position_embeddings"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_parameters_are_kept_in_the_format_that_was_asked_for(saved: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    loaded = load_policy(saved, dtype=dtype)
    assert {parameter.dtype for parameter in loaded.parameters()} == {dtype}
    found, expected = scores(loaded), scores(policy())
    assert torch.isfinite(found).all()
    assert torch.allclose(found.float(), expected, atol=0.1 if dtype == torch.bfloat16 else 1e-4)
    save_policy(loaded, tmp_path)
    assert {tensor.dtype for tensor in load_file(tmp_path / "model.safetensors").values()} == {dtype}


def test_kinds_of_attention_agree(saved: Path) -> None:
    eager = load_policy(saved, attention="eager")
    assert eager.model.config._attn_implementation == "eager"
    assert torch.allclose(scores(eager), scores(load_policy(saved, attention="sdpa")), atol=1e-5)


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        ("magic", r'no model at .*model.* that can be used: .*attn_implementation="magic"'),
        pytest.param(
            "flash_attention_2",
            "no model at .*model.* that can be used: .*FlashAttention2",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, where it may well be used"),
        ),
    ],
    ids=["unknown", "not-installed"],
)
def test_attention_that_cannot_be_had_is_said_in_one_line(saved: Path, attention: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        load_policy(saved, attention=attention)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("device", ["magic", "cuda:99"])
def test_a_device_that_is_not_there_is_said_in_one_line(saved: Path, device: str) -> None:
    with pytest.raises(ValueError, match=f"the device '{device}' cannot be used here: ") as caught:
        load_policy(saved, device=device)
    assert "\n" not in str(caught.value)


def test_a_kind_of_model_that_transformers_does_not_know_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "magic"}))
    with pytest.raises(ValueError, match=r"no model at .* that can be used: .*`magic`") as caught:
        load_policy(tmp_path)
    assert "\n" not in str(caught.value)
