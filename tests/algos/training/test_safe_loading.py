"""Nothing that is read runs code: each file here would leave a mark if it were loaded the careless way."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from resume_worker import CONFIG, QUESTIONS, RETRIEVER, RULES, policy, trainer

import algos
from algos.training.checkpoint import CheckpointError, verify
from algos.training.engines.hf import HFEngine
from algos.training.loading import load_policy, save_policy
from algos.training.trainer import Trainer
from search_gym import Rules, tokenizers

EMBEDDED = Path(__file__).parents[3] / "experiments" / "assets" / "embedded-policy"

pytestmark = pytest.mark.filterwarnings("ignore:.*weights_only:UserWarning")


def code(mark: Path) -> str:
    """A module that leaves the mark when it is imported."""
    return f"from pathlib import Path\n\nPath({str(mark)!r}).mkdir()\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of ours, whole."""
    folder = tmp_path / "model"
    save_policy(policy(), folder)
    return folder


def with_config(folder: Path, **settings: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def test_pickled_weights_run_no_code(model: Path, mark: Path, trap: object) -> None:
    state = torch.load(io.BytesIO(_saved(policy().model.state_dict())), weights_only=True)
    (model / "model.safetensors").unlink()
    torch.save(state, model / "pytorch_model.bin")
    assert load_policy(model).model.num_parameters() > 0  # such a file does load when it holds tensors alone
    torch.save(state | {"more": trap}, model / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pickled weights hold more than tensors; take a model in the safetensors"):
        load_policy(model)
    assert not mark.exists()


def _saved(content: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


CUSTOM = """
from transformers import LlamaConfig, LlamaForCausalLM


class OwnConfig(LlamaConfig):
    model_type = "own"


class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


def test_code_of_a_model_runs_only_when_it_is_trusted(
    model: Path, mark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    (model / "own.py").write_text(code(mark) + CUSTOM)
    with_config(model, auto_map={"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"})
    load_policy(model)  # a Llama by its model_type: transformers' own code does
    assert not mark.exists()
    with_config(model, model_type="own")
    with pytest.raises(ValueError, match=r"Python code of its own, which runs only with --trust-remote-code"):
        load_policy(model)
    assert not mark.exists()
    assert type(load_policy(model, trust_remote_code=True).model).__name__ == "OwnForCausalLM"
    assert mark.exists()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with one checkpoint."""
    trainer(replace(CONFIG, steps=1)).train(tmp_path / "run")
    return tmp_path / "run"


def reseal(folder: Path) -> None:
    """The manifest of whoever puts other files into a checkpoint."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, entry in manifest["files"].items():
        data = (folder / name).read_bytes()
        entry |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    verify(folder)


@pytest.mark.parametrize(
    "name", ["rank-0.pt", "policy/model.safetensors", "policy-optimizer.safetensors", "state.json"]
)
def test_a_checkpoint_runs_no_code(run: Path, mark: Path, trap: object, name: str) -> None:
    (folder,) = (run / "checkpoints").iterdir()
    if name == "rank-0.pt":
        torch.save(torch.load(folder / name, weights_only=True) | {"more": trap}, folder / name)
    else:
        (folder / name).write_bytes(pickle.dumps(trap))
    reseal(folder)
    with pytest.raises(CheckpointError, match=f"{name} cannot be read"):
        trainer(replace(CONFIG, steps=2)).train(run, resume=True)
    assert not mark.exists()


def test_a_checkpoint_lacks_nothing(run: Path) -> None:
    (folder,) = (run / "checkpoints").iterdir()
    (folder / "state.json").write_text("{}")
    reseal(folder)
    with pytest.raises(CheckpointError, match=r"state\.json lacks"):
        trainer(replace(CONFIG, steps=2)).train(run, resume=True)


def test_a_model_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no model at .*nowhere.* that can be used"):
        load_policy(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no model at .*empty.* that can be used"):
        load_policy(tmp_path / "empty")


def test_a_tokenizer_without_padding_token_trains(tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    tokenizers.copy_files(str(EMBEDDED), folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["pad_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = tokenizers.load(folder)
    start = policy()
    metrics, _ = Trainer(
        start, algos.make("grpo"), HFEngine(start, tokenizer), tokenizer, RETRIEVER, RULES, QUESTIONS, CONFIG
    ).step()
    assert metrics["updates"] == CONFIG.updates


def test_a_context_that_the_model_does_not_have_is_refused() -> None:
    start, tokenizer = policy(), tokenizers.embedded()
    longest = start.model.config.max_position_embeddings
    with pytest.raises(ValueError, match=f"{longest + 1} tokens .*the model reads no more than {longest}: lower"):
        Trainer(
            start,
            algos.make("grpo"),
            HFEngine(start, tokenizer),
            tokenizer,
            RETRIEVER,
            Rules(max_context_tokens=longest + 1),
            QUESTIONS,
        )
