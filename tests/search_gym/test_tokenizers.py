"""The tokenizer that the environment needs: text survives, control tokens cannot be forged, reading is incremental."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import tokenizers as hf
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors

from search_gym import tokenizers
from search_gym.questions import lexicon
from search_gym.questions.world import World
from search_gym.tokenizers import TextStream, Tokenizer

EMBEDDED = tokenizers.embedded()
# Text without lone surrogates, which no UTF-8 file can hold.
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def byte_level(*, bos: bool) -> hf.Tokenizer:
    """A small byte-level BPE with control tokens, as most language models have one."""
    tokenizer = hf.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore
    trainer = hf.trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "<|im_end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(["<search> who wrote it </search>\n\n", "<answer> a name </answer>"] * 9, trainer)
    if bos:
        leading = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
        tokenizer.post_processor = leading  # pyright: ignore
    return tokenizer


def save(tokenizer: hf.Tokenizer, folder: Path) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "eos_token": "<|im_end|>",
        "pad_token": {"__type": "AddedToken", "content": "<|im_end|>"},
        "bos_token": "<s>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@given(TEXT)
def test_every_text_survives_the_embedded_tokenizer(text: str) -> None:
    assert EMBEDDED.decode(EMBEDDED.encode(text)) == text


@given(TEXT, st.sampled_from(["<|end|>", "<|end|><|end|>"]), TEXT)
def test_text_never_becomes_a_control_token(before: str, control: str, after: str) -> None:
    ids = EMBEDDED.encode(before + control + after)
    assert EMBEDDED.eos_id not in ids
    assert EMBEDDED.decode(ids) == before + control + after


@given(st.lists(st.integers(0, EMBEDDED.vocab_size - 1)))
def test_reading_id_by_id_gives_the_text_of_all(ids: list[int]) -> None:
    # Where bytes are no text, how they are cut decides how many U+FFFD stand for them; what is text must be the same.
    stream = TextStream(EMBEDDED)
    read = "".join(stream.push(i) for i in ids)
    whole = EMBEDDED.decode(ids)
    if "\ufffd" not in whole:
        assert read == whole
    else:
        assert whole.replace("\ufffd", "").startswith(read.replace("\ufffd", ""))


@given(TEXT)
def test_reading_text_id_by_id_gives_it_back(text: str) -> None:
    stream = TextStream(EMBEDDED)
    assert "".join(stream.push(i) for i in EMBEDDED.encode(text)) == text


def test_every_word_of_the_world_is_one_token() -> None:
    for word in lexicon.words():
        assert len(EMBEDDED.encode(f" {word}")) == 1, word
    single_bytes = set(range(256))
    for passage in World(1, {"test": 1}).corpus:
        spelled = [i for i in EMBEDDED.encode(f" {passage.title} {passage.text}") if i in single_bytes]
        assert set(EMBEDDED.decode(spelled)) <= set(".,?"), passage


@pytest.mark.parametrize("bos", [True, False])
def test_a_prompt_has_one_bos_where_the_tokenizer_has_one(bos: bool, tmp_path: Path) -> None:
    tokenizer = tokenizers.load(save(byte_level(bos=bos), tmp_path))
    for before in ("Question: ", "<s>Question: "):
        ids = tokenizer.encode_prompt(before, "who?", "\n")
        assert ids.count(0) == (1 if bos else before.count("<s>"))
        assert not bos or ids[0] == 0


def test_control_tokens_of_a_prompt_come_from_its_template_alone(tmp_path: Path) -> None:
    tokenizer = tokenizers.load(save(byte_level(bos=False), tmp_path))
    assert tokenizer.eos_id == tokenizer.pad_id == 1
    ids = tokenizer.encode_prompt("a<|im_end|>", "is <|im_end|> a token?", "b")
    assert ids.count(tokenizer.eos_id) == 1
    assert tokenizer.decode(ids) == "a<|im_end|>is <|im_end|> a token?b"


def test_a_folder_and_an_object_make_the_same_tokenizer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = save(byte_level(bos=True), tmp_path)
    loaded = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    from_folder, from_object = tokenizers.load(folder), tokenizers.load(loaded)
    for field in ("eos_ids", "bos_id", "pad_id", "vocab_size", "control_tokens"):
        assert getattr(from_folder, field) == getattr(from_object, field), field


def test_what_cannot_be_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot use int"):
        tokenizers.load(3)
    with pytest.raises(ValueError, match=r"no tokenizer\.json"):
        tokenizers.load(tmp_path)
    byte_level(bos=False).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="no end-of-sequence token"):
        tokenizers.load(tmp_path)
    assert isinstance(tokenizers.load(EMBEDDED), Tokenizer)


def test_a_hub_that_cannot_be_reached_is_not_a_model_without_a_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert huggingface_hub.constants.HF_HUB_OFFLINE
    with pytest.raises(ValueError, match="no tokenizer at 'nobody/nothing': not a folder here, and the hub says: "):
        tokenizers.load("nobody/nothing")


@pytest.mark.parametrize("half", ["\ud83d", "a\udfffb"])
def test_half_a_surrogate_pair_is_encoded_as_what_it_is_not(half: str) -> None:
    assert EMBEDDED.decode(EMBEDDED.encode(half)) == re.sub("[\ud800-\udfff]", "\ufffd", half)
    assert EMBEDDED.encode_template("x ", half, "é") == EMBEDDED.encode(f"x {half}é")
    assert EMBEDDED.encode("\ud83d\ude00") == EMBEDDED.encode("😀")


def test_how_a_file_once_cut_and_padded_batches_does_not_matter(tmp_path: Path) -> None:
    backend, text = byte_level(bos=False), "who wrote it, and where, and when"
    expected = tokenizers.load(save(backend, tmp_path)).encode(text)
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    description = json.loads(backend.to_str())
    description["model"]["dropout"] = 0.9
    tokenizer = tokenizers.load(save(hf.Tokenizer.from_str(json.dumps(description)), tmp_path))
    for _ in range(3):
        assert tokenizer.encode(text) == tokenizer.encode_template(text) == expected
