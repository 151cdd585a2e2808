"""Nothing that is read runs code: each file here would leave a mark if it were read the careless way."""

from __future__ import annotations

import io
import json
import pickle
import re
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from encoding import CITIES, tiny_bert

from search_gym import sources, tokenizers
from search_gym.chat import render
from search_gym.retrieval import index
from search_gym.retrieval.bm25 import BM25Retriever
from search_gym.retrieval.dense import MANIFEST
from search_gym.retrieval.encoders import SentenceEncoder
from search_gym.retrieval.rerank import RerankRetriever

TOKENIZER = Path(__file__).parents[2] / "experiments" / "assets" / "embedded-policy"


def code(mark: Path) -> str:
    """A module that leaves the mark when it is imported."""
    return f"from pathlib import Path\n\nPath({str(mark)!r}).mkdir()\n"


def test_a_tokenizer_runs_no_code(tmp_path: Path, mark: Path) -> None:
    folder = tmp_path / "tokenizer"
    shutil.copytree(TOKENIZER, folder)
    (folder / "own.py").write_text(code(mark))
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(settings | {"auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}))
    assert tokenizers.load(folder).vocab_size == tokenizers.embedded().vocab_size
    assert not mark.exists()


def test_a_chat_template_runs_no_code(mark: Path, tmp_path: Path) -> None:
    template = "{{ cycler.__init__.__globals__.os.mkdir('" + str(mark) + "') }}"
    from jinja2 import Environment

    Environment().from_string(template.replace(str(mark), str(tmp_path / "control"))).render()
    assert (tmp_path / "control").exists()
    folder = tmp_path / "tokenizer"
    shutil.copytree(TOKENIZER, folder)
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(ValueError, match=r"the chat template of .* refuses the prompt"):
        render("Who?", tokenizers.load(folder))
    assert not mark.exists()


def pickled_array(content: object) -> bytes:
    """An .npy file as numpy writes it when it may pickle."""
    file = io.BytesIO()
    np.save(file, np.array([content], object), allow_pickle=True)
    return file.getvalue()


def zipped(array: bytes, like: Path) -> bytes:
    """An .npz file with the members of another, each of which holds the array."""
    file = io.BytesIO()
    names = zipfile.ZipFile(like).namelist() if zipfile.is_zipfile(like) else ["data.npy"]
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, array)
    return file.getvalue()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"id": p.id, "contents": f"{p.title}\n{p.text}"}) + "\n" for p in CITIES))
    return path


def test_an_index_runs_no_code(corpus: Path, tmp_path: Path, mark: Path, trap: object) -> None:
    whole = tmp_path / "whole"
    index.build(corpus, whole, "bm25", work=index.Work(progress=False))
    files = [path.relative_to(whole) for path in whole.rglob("*") if path.is_file() and path.name != ".lock"]
    assert {path.suffix for path in files} >= {".json", ".npy"}
    array = pickled_array(trap)
    for name in files:
        for number, content in enumerate((array, pickle.dumps(trap), zipped(array, whole / name))):
            folder = tmp_path / f"{'-'.join(name.parts)}-{number}"
            shutil.copytree(whole, folder)
            (folder / name).write_bytes(content)
            with suppress(Exception):  # whatever it says: here it matters that nothing runs
                sources.open_retriever(str(folder)).search(["capital of Norway"], 2)
            assert not mark.exists(), name


@pytest.mark.slow
def test_a_file_of_an_index_that_is_no_array_is_named(corpus: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    index.build(corpus, whole, "bm25", work=index.Work(progress=False))
    names = [path.relative_to(whole) for path in whole.rglob("*.npy")]
    assert names
    for name in names:
        folder = tmp_path / "-".join(name.parts)
        shutil.copytree(whole, folder)
        (folder / name).write_bytes(zipped((whole / name).read_bytes(), whole / name))
        with pytest.raises(ValueError, match=rf"{re.escape(str(folder / name))} .*build the index again"):
            sources.open_retriever(str(folder))


@pytest.mark.slow
def test_a_dense_index_cannot_say_that_its_model_is_trusted(corpus: Path, tmp_path: Path, mark: Path) -> None:
    folder, encoder = tmp_path / "index", encoder_with_code(tmp_path, mark)
    described = (encoder / "modules.json").read_text()
    (encoder / "modules.json").unlink()
    settings = index.DenseSettings(encoder=str(encoder))
    index.build(corpus, folder, "dense", vectors=settings, work=index.Work(progress=False))
    (encoder / "modules.json").write_text(described)
    manifest = folder / "dense" / MANIFEST
    content = json.loads(manifest.read_text())
    content["encoder_spec"]["trust_remote_code"] = True
    manifest.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="trust_remote_code"):
        sources.open_retriever(str(folder))
    assert not mark.exists()


def encoder_with_code(tmp_path: Path, mark: Path) -> Path:
    """A sentence-transformers model one of whose modules is Python code in its folder."""
    folder = tiny_bert(tmp_path / "encoder")
    (folder / "own.py").write_text(code(mark))
    types = ["sentence_transformers.models.Transformer", "own.Pooling"]
    modules = [{"idx": number, "name": str(number), "path": "", "type": kind} for number, kind in enumerate(types)]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def opened_reranker(model: str) -> RerankRetriever:
    return RerankRetriever(BM25Retriever(CITIES), model)


@pytest.mark.slow
@pytest.mark.parametrize("opened", [SentenceEncoder, opened_reranker], ids=["encoder", "reranker"])
def test_an_encoder_runs_no_code(tmp_path: Path, mark: Path, opened: Callable[[str], object]) -> None:
    folder = encoder_with_code(tmp_path, mark)
    # A cross-encoder does not even look at such modules.
    with suppress(ValueError) if opened is opened_reranker else pytest.raises(ValueError, match="trust_remote_code"):
        opened(str(folder))
    assert not mark.exists()


def questions_in_parquet(path: Path, mark: Path, trap: object) -> None:
    """A column with the pickled type that pyarrow once unpickled on sight."""
    import pyarrow
    from pyarrow import parquet

    metadata = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(trap),
    }
    fields = [pyarrow.field(name, pyarrow.string(), metadata=metadata) for name in ("id", "question")]
    schema = pyarrow.schema([*fields, pyarrow.field("golden_answers", pyarrow.list_(pyarrow.string()))])
    rows = [{"id": "q", "question": "Who?", "golden_answers": ["Me"]}]
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema), path)


def questions_by_script(folder: Path, mark: Path, trap: object) -> None:
    folder.mkdir()
    (folder / f"{folder.name}.py").write_text(code(mark))
    (folder / "train.jsonl").write_text('{"id": "q", "question": "Who?", "golden_answers": ["Me"]}\n')


def questions_in_tar(folder: Path, mark: Path, trap: object) -> None:
    folder.mkdir()
    with tarfile.open(folder / "train.tar", "w") as archive:
        torch_file = io.BytesIO()
        torch.save(trap, torch_file)
        for name, data in (
            ("0.npy", pickled_array(trap)),
            ("0.pkl", pickle.dumps(trap)),
            ("0.pth", torch_file.getvalue()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def questions_pickled(folder: Path, mark: Path, trap: object) -> None:
    folder.mkdir()
    (folder / "train.pkl").write_bytes(pickle.dumps(trap))


KINDS_OF_QUESTIONS = {
    "set.parquet": questions_in_parquet,
    "script": questions_by_script,
    "tar": questions_in_tar,
    "pickle": questions_pickled,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS_OF_QUESTIONS)
def test_a_question_set_runs_no_code(tmp_path: Path, mark: Path, trap: object, kind: str) -> None:
    KINDS_OF_QUESTIONS[kind](tmp_path / kind, mark, trap)
    if kind == "set.parquet":
        assert [question.text for question in sources.list_questions(str(tmp_path / kind))] == ["Who?"]
    else:
        with pytest.raises(ValueError, match=kind):
            sources.list_questions(str(tmp_path / kind))
    assert not mark.exists()
