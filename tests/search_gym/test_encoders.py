"""Encoders: what is encoded, by which model, and what names it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from encoding import CITIES, NAMES, QUERIES, minilm, tiny_bert

from search_gym.retrieval import Passage
from search_gym.retrieval.corpus import contents
from search_gym.retrieval.encoders import SentenceEncoder
from search_gym.retrieval.models import model_digest, model_folder
from search_gym.unicode import whole


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("models") / "tiny")


def copy(model: Path, folder: Path, **files: str) -> Path:
    shutil.copytree(model, folder)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return folder


def test_vectors_are_float32_of_length_1() -> None:
    encoder = minilm()
    for vectors in (encoder.queries(QUERIES), encoder.passages(CITIES)):
        assert (vectors.dtype, vectors.shape[1]) == (np.float32, encoder.dimension) == (np.float32, 384)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert encoder.queries([]).shape == encoder.passages([]).shape == (0, 384)


def test_the_passage_that_answers_is_the_nearest() -> None:
    encoder = minilm()
    queries = ["What is the main city of Norway?", "Which city is on the Seine?", "Who sings?"]
    scores = encoder.queries(queries) @ encoder.passages(CITIES).T
    assert scores.argmax(1).tolist() == [0, 1, 2]


@pytest.mark.parametrize("query", QUERIES, ids=NAMES)
def test_a_text_gives_the_same_vector_alone_and_in_a_batch(query: str) -> None:
    alone, batch = minilm().queries([query]), minilm().queries(["Oslo", query, *QUERIES])
    np.testing.assert_allclose(batch[1], alone[0], atol=1e-5)


def test_half_a_surrogate_pair_is_read_as_the_replacement_character() -> None:
    assert whole("a\ud800b") == "a\ufffdb"
    assert whole("\ud83d\ude00") == "\U0001f600"
    assert whole("\U0001f600é") == "\U0001f600é"


@pytest.mark.parametrize(
    ("passage", "expected"),
    [
        (Passage("a", "Oslo", "A city."), '"Oslo"\nA city.'),
        (Passage("a", "", "A city."), "A city."),
        (Passage("a", "Oslo", ""), '"Oslo"\n'),
        (Passage("a", '"Weird Al" Yankovic', "A man."), '"""Weird Al"" Yankovic"\nA man.'),
    ],
    ids=["both", "no-title", "no-text", "quotes"],
)
def test_passages_are_encoded_as_the_contents_of_flashrag(passage: Passage, expected: str) -> None:
    assert contents(passage.title, passage.text) == expected


def test_a_bare_model_is_pooled_by_the_mean_over_its_tokens(tiny: Path) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(tiny), AutoModel.from_pretrained(tiny)
    with torch.inference_mode():
        states = model(**tokenizer(["query: oslo is the capital"], return_tensors="pt")).last_hidden_state[0]
    expected = states.mean(0).numpy()
    found = SentenceEncoder(str(tiny), query_prefix="query: ", normalize=False).queries(["Oslo is the capital"])
    np.testing.assert_allclose(found[0], expected, atol=1e-5)
    found = SentenceEncoder(str(tiny), query_prefix="query: ").queries(["Oslo is the capital"])
    np.testing.assert_allclose(found[0], expected / np.linalg.norm(expected), atol=1e-5)


def test_pooling_is_what_the_model_says(tiny: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    transformer = Transformer(str(tiny))
    model = SentenceTransformer(modules=[transformer, Pooling(16, "cls")], device="cpu")
    model.save(str(tmp_path / "cls"), create_model_card=False)
    found = SentenceEncoder(str(tmp_path / "cls"), normalize=False).queries(["oslo"])
    np.testing.assert_allclose(found, model.encode(["oslo"]), atol=1e-6)
    assert not np.allclose(found, SentenceEncoder(str(tiny), normalize=False).queries(["oslo"]), atol=0.01)


def test_texts_are_cut_at_the_length(tiny: Path) -> None:
    encoder = SentenceEncoder(str(tiny), max_length=6)
    vectors = encoder.queries(["oslo is the capital", "oslo is the capital " * 500, "oslo is the paris"])
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-5)
    assert not np.allclose(vectors[0], vectors[2], atol=1e-3)


@pytest.mark.parametrize(
    ("name", "query", "passage"),
    [
        ("e5-base-v2", "query: ", "passage: "),
        ("multilingual-e5-small", "query: ", "passage: "),
        ("E5", "query: ", "passage: "),
        ("multilingual-e5-large-instruct", "", ""),
        ("e5-mistral-7b-instruct", "", ""),
        ("bge-base-en-v1.5", "Represent this sentence for searching relevant passages: ", ""),
        ("bge-m3", "", ""),
        ("be5t", "", ""),
        ("all-MiniLM-L6-v2", "", ""),
    ],
)
def test_prefixes_come_with_the_name(tiny: Path, tmp_path: Path, name: str, query: str, passage: str) -> None:
    encoder = SentenceEncoder(str(copy(tiny, tmp_path / name)))
    assert (encoder.spec["query_prefix"], encoder.spec["passage_prefix"]) == (query, passage)
    bare = SentenceEncoder(str(tiny))
    np.testing.assert_allclose(encoder.queries(["oslo"]), bare.queries([f"{query}oslo"]), atol=1e-5)
    city = Passage("", "", "oslo")
    np.testing.assert_allclose(encoder.passages([city]), bare.queries([f"{passage}oslo"]), atol=1e-5)


def test_prefixes_can_be_given_and_the_model_may_have_its_own(tiny: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    prompts = {"query": "ask: ", "document": "read: "}
    model = SentenceTransformer(str(tiny), device="cpu", prompts=prompts, default_prompt_name="query")
    model.save(str(tmp_path / "e5-own"), create_model_card=False)
    own = SentenceEncoder(str(tmp_path / "e5-own"))
    assert (own.spec["query_prefix"], own.spec["passage_prefix"]) == ("ask: ", "read: ")
    bare = SentenceEncoder(str(tiny))
    # The default prompt of the model does not come on top of the prefix.
    np.testing.assert_allclose(own.queries(["oslo"]), bare.queries(["ask: oslo"]), atol=1e-5)
    given = SentenceEncoder(str(tmp_path / "e5-own"), query_prefix="", passage_prefix="of ")
    np.testing.assert_allclose(given.queries(["oslo"]), bare.queries(["oslo"]), atol=1e-5)
    np.testing.assert_allclose(given.passages([Passage("", "", "oslo")]), bare.queries(["of oslo"]), atol=1e-5)


def test_a_digest_names_all_that_the_vectors_depend_on(tiny: Path, tmp_path: Path) -> None:
    encoder = SentenceEncoder(str(tiny))
    same = copy(tiny, tmp_path / "same", README__md="words", pytorch_model__bin="not read: there are safetensors")
    assert SentenceEncoder(str(same), batch_size=3).digest == encoder.digest
    other = tiny_bert(tmp_path / "other", seed=1)
    digests = [
        encoder.digest,
        SentenceEncoder(str(other)).digest,
        SentenceEncoder(str(tiny), query_prefix="query: ").digest,
        SentenceEncoder(str(tiny), passage_prefix="query: ").digest,
        SentenceEncoder(str(tiny), normalize=False).digest,
        SentenceEncoder(str(tiny), max_length=6).digest,
    ]
    assert len(set(digests)) == len(digests)
    assert all(len(digest) == 32 and int(digest, 16) >= 0 for digest in digests)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_byte_of_any_file_of_the_model_changes_its_digest(tiny: Path, tmp_path: Path, name: str) -> None:
    changed = copy(tiny, tmp_path / "changed")
    before = model_digest(changed)
    content = bytearray((changed / name).read_bytes())
    content[-2] ^= 1
    (changed / name).write_bytes(content)
    assert model_digest(changed) != before


def test_a_spec_makes_the_same_encoder_again(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny.parent)
    encoder = SentenceEncoder("tiny", query_prefix="query: ", max_length=9)
    assert encoder.spec["model"] == str(tiny)
    again = SentenceEncoder(**json.loads(json.dumps(encoder.spec)))
    assert (again.digest, again.spec) == (encoder.digest, encoder.spec)
    assert minilm().spec["model"] == "minilm"


def test_a_name_on_the_hub_is_found_in_its_cache(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    cache = tmp_path / "models--acme--e5-tiny"
    copy(tiny, cache / "snapshots" / ("0" * 40))
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    encoder = SentenceEncoder("acme/e5-tiny")
    assert (encoder.spec["model"], encoder.spec["query_prefix"]) == ("acme/e5-tiny", "query: ")
    by_path = SentenceEncoder(str(cache / "snapshots" / ("0" * 40)))
    assert (by_path.digest, by_path.spec["passage_prefix"]) == (encoder.digest, "passage: ")
    with pytest.raises(FileNotFoundError, match="'acme/none' is neither a folder here nor a model that could be had"):
        SentenceEncoder("acme/none")


def test_faulty_arguments_are_refused(tmp_path: Path, tiny: Path) -> None:
    for name in (str(tmp_path / "none"), "./none", "a/b/c"):
        with pytest.raises(FileNotFoundError, match="there is no folder here that could hold a model"):
            model_folder(name, organization="acme")
    with pytest.raises(FileNotFoundError, match=r"there is no config\.json"):
        model_digest(tmp_path)
    with pytest.raises(ValueError, match="batch_size and max_length are at least 1, not 0 and None"):
        SentenceEncoder(str(tiny), batch_size=0)
    with pytest.raises(ValueError, match="at least 1, not 64 and 0"):
        SentenceEncoder(str(tiny), max_length=0)


def test_numbers_that_are_not_finite_are_an_error(tiny: Path) -> None:
    import torch

    encoder = SentenceEncoder(str(tiny))
    with torch.no_grad():
        next(encoder._model.parameters()).fill_(float("nan"))
    with pytest.raises(ValueError, match="not finite: try dtype='float32'"):
        encoder.queries(["oslo"])


def test_loading_and_encoding_print_nothing(tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    SentenceEncoder(str(tiny)).passages(CITIES)
    assert capfd.readouterr() == ("", "")


def test_importing_is_light() -> None:
    names = ["ann", "dense", "encoders", "hybrid", "models", "rerank", "vectors"]
    code = f"import {', '.join(f'search_gym.retrieval.{name}' for name in names)}, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "faiss", "sentence_transformers", "huggingface_hub"} & set(loaded)


@pytest.mark.slow
def test_several_processes_give_the_vectors_of_one(tiny: Path) -> None:
    many = [Passage(str(i), "", f"oslo {i} is the capital") for i in range(50)]
    with SentenceEncoder(str(tiny), device=["cpu", "cpu"], batch_size=8) as encoder:
        assert encoder.workers == 2
        vectors = encoder.passages(many)
        np.testing.assert_allclose(encoder.queries(["oslo"]), SentenceEncoder(str(tiny)).queries(["oslo"]), atol=1e-5)
        np.testing.assert_allclose(encoder.passages(many[:3]), vectors[:3], atol=1e-5)
    np.testing.assert_allclose(vectors, SentenceEncoder(str(tiny)).passages(many), atol=1e-5)
