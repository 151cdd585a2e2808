"""Dense retrieval: laws over any corpus, index and queries, then the cases."""

from __future__ import annotations

import json
import shutil
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from encoding import CITIES, NAMES, QUERIES, WordEncoder, minilm, tiny_bert, towns
from hypothesis import given, settings
from hypothesis import strategies as st

from search_gym.retrieval import Hit, Passage, ann
from search_gym.retrieval.dense import DenseRetriever, adopt, build, in_memory, open_dense
from search_gym.retrieval.encoders import SentenceEncoder
from search_gym.retrieval.store import PassageStore, write
from search_gym.retrieval.vectors import encode

faiss = pytest.importorskip("faiss")
FACTORIES = [
    "Flat",
    "HNSW8",
    "IVF4,Flat",
    "PQ4x4",
    "IVF4,PQ4x4",
    "OPQ4_8,IVF4,PQ4x4",
    "SQ8",
    "IVF4,Flat,RFlat",
    "PQ8x4fs",
]
WORDS = st.lists(st.sampled_from(["port", "market", "Town", "7", "people,", "x", "日本", "\ud800", '"']), max_size=8)
TEXT = st.text() | st.text(st.characters(categories=["Cs", "Cc", "Zs", "L"]), max_size=20) | WORDS.map(" ".join)


@cache
def small(factory: str) -> DenseRetriever:
    return in_memory(towns(300), WordEncoder(), factory)


@cache
def town_vectors() -> np.ndarray:
    return WordEncoder().passages(towns(300))


@cache
def cities() -> DenseRetriever:
    return in_memory(CITIES, minilm())


def agree(some: list[Hit], others: list[Hit]) -> None:
    """The same hits, but for places that rounding may swap: see `DenseRetriever`."""
    assert len(some) == len(others)
    np.testing.assert_allclose([hit.score for hit in some], [hit.score for hit in others], atol=1e-4)
    scores = {hit.id: hit.score for hit in others}
    last = min(scores.values(), default=0)
    for hit in some:
        assert abs(scores.get(hit.id, last) - hit.score) <= 1e-4


@pytest.mark.parametrize("factory", FACTORIES)
@given(queries=st.lists(TEXT, max_size=6), k=st.integers(1, 350))
@settings(max_examples=25)
def test_a_query_finds_the_same_alone_and_in_a_batch(factory: str, queries: list[str], k: int) -> None:
    batch = small(factory).search(queries, k)
    assert len(batch) == len(queries)
    for query, hits in zip(queries, batch, strict=True):
        agree(hits, small(factory).search([query], k)[0])


@given(queries=st.lists(TEXT, max_size=4), k=st.integers(1, 5))
@settings(max_examples=8)
def test_a_query_finds_the_same_alone_and_in_a_batch_with_a_real_model(queries: list[str], k: int) -> None:
    for query, hits in zip(queries, cities().search(queries, k), strict=True):
        agree(hits, cities().search([query], k)[0])


@pytest.mark.parametrize("factory", FACTORIES)
@given(query=TEXT, k=st.integers(1, 350))
@settings(max_examples=25)
def test_hits_are_distinct_and_best_first_and_never_a_padding(factory: str, query: str, k: int) -> None:  # R1
    passages = {passage.id: passage for passage in towns(300)}
    (hits,) = small(factory).search([query], k)
    assert len({hit.id for hit in hits}) == len(hits) <= min(k, 300)
    assert [(hit.title, hit.text) for hit in hits] == [(passages[h.id].title, passages[h.id].text) for h in hits]
    keys = [(-hit.score, int(hit.id)) for hit in hits]
    assert keys == sorted(keys)
    if not query.strip():
        assert hits == []


@given(query=TEXT.filter(str.strip), k=st.integers(1, 350))
@settings(max_examples=50)
def test_a_flat_index_finds_the_greatest_inner_products(query: str, k: int) -> None:
    scores = town_vectors() @ WordEncoder().queries([query])[0]
    (hits,) = small("Flat").search([query], k)
    assert len(hits) == min(k, 300)
    np.testing.assert_allclose([hit.score for hit in hits], np.sort(scores)[::-1][:k], atol=1e-5)
    np.testing.assert_allclose([scores[int(hit.id)] for hit in hits], [hit.score for hit in hits], atol=1e-5)


def test_a_k_beyond_the_corpus_gives_what_there_is() -> None:  # R1
    (hits,) = cities().search(["Which city is on the Seine?"], 5)
    assert hits[0].id == "p"
    assert {hit.id for hit in hits} == {"o", "p", "b"}
    assert len(hits) == 3


def test_what_an_index_cannot_fill_is_left_out() -> None:  # R1
    index = in_memory(towns(300), WordEncoder(), "IVF4,Flat")._index
    retriever = DenseRetriever(towns(300), WordEncoder(), index, parameters={"nprobe": 1})
    (hits,) = retriever.search(["port"], 300)
    assert 0 < len(hits) < 300
    assert min(hit.score for hit in hits) > -2  # FAISS pads with the least of all numbers


@pytest.mark.parametrize("query", QUERIES, ids=NAMES)
def test_any_string_is_a_query(query: str) -> None:  # R1
    start = time.monotonic()
    batch = cities().search(["France", query, "", query], 2)
    assert time.monotonic() - start < 20
    agree(batch[1], cities().search([query], 2)[0])
    agree(batch[1], batch[3])
    assert batch[2] == []
    assert len(batch[1]) == (2 if query.strip() else 0)


def test_an_empty_query_is_not_encoded() -> None:
    encoder = WordEncoder()
    retriever = in_memory(towns(20), encoder)
    encoder.asked.clear()
    assert retriever.search(["", " \t\n", "\u3000\xa0"], 3) == [[], [], []]
    assert retriever.search([], 3) == []
    assert encoder.asked == []


def test_equal_scores_come_in_the_order_of_the_corpus() -> None:
    twins = [Passage(str(i), "", "oslo") for i in range(50)]
    assert [hit.id for hit in in_memory(twins, WordEncoder()).search(["oslo"], 50)[0]] == [str(i) for i in range(50)]


@pytest.mark.parametrize("factory", FACTORIES)
def test_an_index_on_disk_finds_what_it_finds_in_memory(tmp_path: Path, factory: str) -> None:
    passages, encoder = towns(300), WordEncoder()
    built = build(passages, tmp_path, encoder, factory, shard_size=70)
    queries = ["port", "Town 7", "x y", ""]
    for retriever in (built, open_dense(tmp_path, passages, encoder, memory_map=False)):
        for hits, expected in zip(retriever.search(queries, 7), small(factory).search(queries, 7), strict=True):
            agree(hits, expected)
        assert retriever.digest == built.digest


def test_a_flat_index_is_written_as_faiss_writes_it(tmp_path: Path) -> None:
    vectors = encode(towns(30), tmp_path, WordEncoder(), shard_size=7)
    ann.build(vectors, tmp_path / "ours", "Flat")
    faiss.write_index(ann.make(vectors, "Flat"), str(tmp_path / "theirs"))
    assert ann._writes_flat()
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_an_open_index_makes_its_encoder_again(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "e5-tiny")
    passages = write(CITIES, tmp_path / "passages", "cities")
    built = build(passages, tmp_path / "dense", SentenceEncoder(str(folder), max_length=20))
    opened = open_dense(tmp_path / "dense", passages, encoder_options={"batch_size": 2, "device": "cpu"})
    assert opened.digest == built.digest
    assert opened.search(["oslo"], 3) == built.search(["oslo"], 3)
    assert isinstance(opened.encoder, SentenceEncoder)
    assert (opened.encoder.spec["query_prefix"], opened.encoder.spec["max_length"]) == ("query: ", 20)
    manifest = json.loads((tmp_path / "dense" / "manifest.json").read_text())
    assert "trust_remote_code" not in manifest["encoder_spec"]
    shutil.move(folder, tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match="there is no folder here that could hold a model"):
        open_dense(tmp_path / "dense", passages)


def test_the_vectors_serve_another_factory_and_may_be_removed(tmp_path: Path) -> None:
    passages, encoder = towns(300), WordEncoder()
    build(passages, tmp_path, encoder)
    encoder.asked.clear()
    other = build(passages, tmp_path, encoder, "HNSW8")
    assert encoder.asked == []
    assert other.parameters == {"efSearch": 128}
    shutil.rmtree(tmp_path / "vectors")
    assert open_dense(tmp_path, passages, encoder).search(["port"], 3) == other.search(["port"], 3)


def test_another_corpus_or_encoder_is_refused(tmp_path: Path) -> None:  # R2
    passages, encoder = towns(9), WordEncoder()
    build(passages, tmp_path, encoder)
    names = ("[0-9a-f]{32} with 9 passages", "[0-9a-f]{32} with 8")
    with pytest.raises(ValueError, match=f"is of the corpus {names[0]}, and not of {names[1]}: build it again"):
        open_dense(tmp_path, passages[:8], encoder)
    with pytest.raises(ValueError, match="is of the corpus"):
        open_dense(tmp_path, [*passages[:8], Passage("8", "", "another")], encoder)
    theirs, ours = encoder.digest, WordEncoder(seed=1).digest
    with pytest.raises(ValueError, match=f"was built with the encoder {theirs}, and not with {ours}"):
        open_dense(tmp_path, passages, WordEncoder(seed=1))
    with pytest.raises(ValueError, match="built with an encoder that cannot be made from a description"):
        open_dense(tmp_path, passages)


def test_counts_and_dimensions_that_differ_are_named() -> None:  # R2
    index = in_memory(towns(3), WordEncoder())._index
    with pytest.raises(ValueError, match="the index holds 3 vectors and the corpus 2 passages"):
        DenseRetriever(towns(2), WordEncoder(), index)
    with pytest.raises(ValueError, match="holds vectors of 16 dimensions and the encoder makes 8"):
        DenseRetriever(towns(3), WordEncoder(8), index)
    by_distance = faiss.IndexFlatL2(16)
    by_distance.add(WordEncoder().passages(towns(3)))
    with pytest.raises(ValueError, match="another metric than the inner product"):
        DenseRetriever(towns(3), WordEncoder(), by_distance)


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    passages, encoder = towns(9), WordEncoder()
    with pytest.raises(ValueError, match="no dense index here, or not all of it"):
        open_dense(tmp_path, passages, encoder)
    build(passages, tmp_path / "a", encoder)
    build(towns(8), tmp_path / "b", encoder)
    build([*towns(8), Passage("8", "", "another")], tmp_path / "c", encoder)
    index = tmp_path / "a" / "index.faiss"
    shutil.copy(tmp_path / "b" / "index.faiss", index)
    with pytest.raises(ValueError, match=r"index\.faiss: the index holds 8 vectors and the corpus 9 passages"):  # R2
        open_dense(tmp_path / "a", passages, encoder)
    shutil.copy(tmp_path / "c" / "index.faiss", index)
    with pytest.raises(ValueError, match=r"index\.faiss: the index was [0-9a-f]{32} and is [0-9a-f]{32} now"):
        open_dense(tmp_path / "a", passages, encoder)
    index.write_bytes(index.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"FAISS refuses .*index\.faiss"):
        open_dense(tmp_path / "a", passages, encoder)
    index.unlink()
    with pytest.raises(FileNotFoundError, match=r"index\.faiss: there is no index here"):
        open_dense(tmp_path / "a", passages, encoder)
    (tmp_path / "a" / "manifest.json").write_text('{"format": 1}')
    with pytest.raises(ValueError, match=r"manifest\.json: not the manifest of the dense index"):
        open_dense(tmp_path / "a", passages, encoder)


def test_an_index_made_elsewhere_is_adopted(tmp_path: Path) -> None:
    passages, encoder = towns(200), WordEncoder()
    elsewhere = tmp_path / "e5_Flat.index"
    index = faiss.index_factory(16, "Flat", faiss.METRIC_INNER_PRODUCT)
    index.add(encoder.passages(passages).astype(np.float16).astype(np.float32))  # as with half precision on a GPU
    faiss.write_index(index, str(elsewhere))
    adopted = adopt(elsewhere, passages, tmp_path / "dense", encoder)
    for hits, expected in zip(
        adopted.search(["port", "Town 7"], 5), in_memory(passages, encoder).search(["port", "Town 7"], 5), strict=True
    ):
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in expected], abs=2e-3)
    assert open_dense(tmp_path / "dense", passages, encoder).digest == adopted.digest
    assert not (tmp_path / "dense" / "index.faiss").exists()
    for stranger, reason in [
        (passages[:-1], "200 vectors and the corpus 199 passages"),
        (passages[::-1], r"of 16 passages, \d are found by their own vectors"),
    ]:
        with pytest.raises(ValueError, match=rf"e5_Flat\.index: .*{reason}"):
            adopt(elsewhere, stranger, tmp_path / "other", encoder)
    with pytest.raises(ValueError, match="made of another corpus, in another order, or with another encoder"):
        adopt(elsewhere, passages, tmp_path / "other", WordEncoder(seed=1))
    with pytest.raises(ValueError, match="16 dimensions and the encoder makes 8"):
        adopt(elsewhere, passages, tmp_path / "other", WordEncoder(8))


def test_search_parameters(tmp_path: Path) -> None:
    passages, encoder = towns(300), WordEncoder()
    build(passages, tmp_path, encoder, "IVF8,Flat")
    default, wide, narrow = (
        open_dense(tmp_path, passages, encoder, parameters=parameters)
        for parameters in (None, {"nprobe": 64}, {"nprobe": 1})
    )
    assert (default.parameters, narrow.parameters) == ({"nprobe": 64}, {"nprobe": 1})
    assert default.digest == wide.digest != narrow.digest
    assert len(narrow.search(["port"], 300)[0]) < len(default.search(["port"], 300)[0]) == 300
    with pytest.raises(ValueError, match="FAISS refuses the search parameter efSearch = 9 of an IndexIVFFlat"):
        open_dense(tmp_path, passages, encoder, parameters={"efSearch": 9})


@pytest.mark.parametrize("factory", ["IVF4096,Flat", "PQ16", "IDMap,Flat"])
def test_a_factory_that_does_not_fit_is_refused(tmp_path: Path, factory: str) -> None:
    with pytest.raises(ValueError, match=f"FAISS refuses the factory string '{factory}' over 100 vectors: "):
        build(towns(100), tmp_path, WordEncoder(), factory)
    assert [path.name for path in tmp_path.iterdir()] == ["vectors"]


@pytest.mark.parametrize(("factory", "reason"), [("nonsense", "could not parse"), ("PQ3x4", "should be a multiple")])
def test_a_factory_that_faiss_does_not_know_is_refused_before_anything_is_encoded(
    tmp_path: Path, factory: str, reason: str
) -> None:
    with pytest.raises(ValueError, match=f"FAISS refuses the factory string '{factory}': .*{reason}"):
        build(towns(100), tmp_path / "index", WordEncoder(), factory)
    assert not (tmp_path / "index").exists()


def test_digests_name_what_the_hits_depend_on(tmp_path: Path) -> None:
    hnsw = in_memory(towns(300), WordEncoder(), "HNSW8")._index
    retrievers = [
        in_memory(towns(300), WordEncoder()),
        in_memory(towns(299), WordEncoder()),
        in_memory(towns(300), WordEncoder(seed=1)),
        in_memory(towns(300), WordEncoder(), "HNSW8"),
        DenseRetriever(towns(300), WordEncoder(), hnsw, parameters={"efSearch": 9}),
        build(towns(300), tmp_path, WordEncoder()),
    ]
    assert len({retriever.digest for retriever in retrievers}) == len(retrievers)
    assert in_memory(towns(300), WordEncoder()).digest == retrievers[0].digest
    assert retrievers[0].corpus_digest == retrievers[3].corpus_digest != retrievers[1].corpus_digest


def test_faulty_arguments_are_refused(tmp_path: Path) -> None:
    retriever = small("Flat")
    for k in (0, -1):
        with pytest.raises(ValueError, match="k must be at least 1"):
            retriever.search(["Oslo"], k)
    with pytest.raises(TypeError, match="queries must be a list of strings"):
        retriever.search("Oslo", 1)
    with pytest.raises(ValueError, match="the corpus is empty"):
        in_memory([], WordEncoder())
    with pytest.raises(ValueError, match="the corpus is empty"):
        build([], tmp_path, WordEncoder())
    with pytest.raises(ValueError, match="to 'cpu', 'cuda' or 'cuda:NUMBER', not to 'tpu'"):
        DenseRetriever(towns(300), WordEncoder(), retriever._index, device="tpu")


@pytest.mark.skipif(hasattr(faiss, "StandardGpuResources"), reason="this FAISS knows GPUs")
def test_a_gpu_that_faiss_does_not_know_is_an_error() -> None:
    with pytest.raises(ImportError, match=r"this FAISS knows no GPU: pip install 'search-gym\[gpu\]'"):
        DenseRetriever(towns(300), WordEncoder(), small("Flat")._index, device="cuda:1")


@pytest.mark.parametrize(
    ("factory", "mapped"), [("Flat", True), ("HNSW8", True), ("SQ8", True), ("IVF16,Flat", True), ("PQ8x4fs", False)]
)
def test_which_indexes_stay_on_the_disk(tmp_path: Path, factory: str, mapped: bool) -> None:
    """Anonymous memory, for pages of a file can be had back at any time."""
    vectors = np.random.default_rng(0).standard_normal((20_000, 128 if mapped else 16), np.float32)
    faiss.write_index(ann.make(vectors, factory), str(tmp_path / "index"))
    size = (tmp_path / "index").stat().st_size
    before = _anonymous()
    index = ann.read(tmp_path / "index", memory_map=True)
    grown = _anonymous() - before
    assert index.ntotal == 20_000
    if mapped:
        assert grown < size / 3
    assert index.search(vectors[:1], 1)[1].tolist()[0][0] >= 0


def _anonymous() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def test_passages_may_be_a_store(tmp_path: Path) -> None:
    store = write(towns(40), tmp_path / "passages", "towns")
    built = build(store, tmp_path / "dense", WordEncoder())
    opened = open_dense(tmp_path / "dense", PassageStore(tmp_path / "passages"), WordEncoder())
    assert opened.corpus_digest == store.digest
    assert (
        opened.search(["port"], 4)
        == built.search(["port"], 4)
        == in_memory(towns(40), WordEncoder()).search(["port"], 4)
    )
