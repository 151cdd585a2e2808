"""Vectors in shards: whole ones stay, whatever happens in between."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from encoding import WordEncoder, towns
from hypothesis import given
from hypothesis import strategies as st

from search_gym.retrieval.vectors import Vectors, encode

HERE = Path(__file__).resolve().parent


def whole(vectors: Vectors) -> np.ndarray:
    return np.concatenate(list(vectors.shards()))


@given(count=st.integers(1, 40), shard_size=st.integers(1, 50))
def test_shards_hold_the_vectors_in_the_order_of_the_corpus(
    tmp_path_factory: pytest.TempPathFactory, count: int, shard_size: int
) -> None:
    passages, encoder = towns(count), WordEncoder()
    vectors = encode(passages, tmp_path_factory.mktemp("v"), encoder, shard_size=shard_size)
    np.testing.assert_array_equal(whole(vectors), encoder.passages(passages))
    sizes = [len(shard) for shard in vectors.shards()]
    assert (vectors.count, vectors.dimension) == (count, 16)
    assert sizes == [shard_size] * (count // shard_size) + [count % shard_size] * bool(count % shard_size)


@given(count=st.integers(1, 40), shard_size=st.integers(1, 50), size=st.integers(1, 50), seed=st.integers(0, 99))
def test_a_sample_is_of_different_places(
    tmp_path_factory: pytest.TempPathFactory, count: int, shard_size: int, size: int, seed: int
) -> None:
    vectors = encode(towns(count), tmp_path_factory.mktemp("v"), WordEncoder(), shard_size=shard_size)
    rows = {row.tobytes(): place for place, row in enumerate(whole(vectors))}
    sample = vectors.sample(size, seed)
    places = [rows[row.tobytes()] for row in sample]
    assert len(places) == min(size, count)
    assert places == sorted(set(places))
    np.testing.assert_array_equal(sample, vectors.sample(size, seed))


def test_an_encoder_is_never_given_more_than_a_step(tmp_path: Path) -> None:
    sizes: list[int] = []

    class Watched(WordEncoder):
        def passages(self, passages):
            sizes.append(len(passages))
            return super().passages(passages)

    encode(towns(1_200), tmp_path, Watched(), shard_size=700)
    assert sizes == [512, 188, 500]


def test_only_missing_shards_are_encoded(tmp_path: Path) -> None:
    passages = towns(50)
    first = whole(encode(passages, tmp_path, WordEncoder(), shard_size=8))
    (tmp_path / "00002.npy").unlink()
    (tmp_path / "00003.npy.part").write_bytes(b"of a killed process")
    (tmp_path / "00004.npy").write_bytes((tmp_path / "00004.npy").read_bytes()[:-4])  # as after a loss of power
    encoder = WordEncoder()
    # The size of the shards is that of the folder, whatever is asked for now.
    np.testing.assert_array_equal(whole(encode(passages, tmp_path, encoder, shard_size=3)), first)
    assert len(encoder.asked) == 16
    assert encoder.asked[0].startswith('"Town 16"')
    encoder = WordEncoder()
    encode(passages, tmp_path, encoder)
    assert encoder.asked == []


SCRIPT = """
import sys, time
from pathlib import Path
from encoding import WordEncoder, towns
from search_gym.retrieval.vectors import encode

class Slow(WordEncoder):
    def passages(self, passages):
        time.sleep(0.1)
        return super().passages(passages)

encode(towns(200), Path(sys.argv[1]), Slow(), shard_size=4)
"""


def test_what_a_killed_process_encoded_stays(tmp_path: Path) -> None:
    folder, code = tmp_path / "v", f"import sys; sys.path.insert(0, {str(HERE)!r})\n{SCRIPT}"
    for shards in (2, 5):  # killed twice
        process = subprocess.Popen([sys.executable, "-c", code, str(folder)], stderr=subprocess.PIPE)
        while len(list(folder.glob("*.npy"))) < shards:
            assert process.poll() is None, "the process ended by itself"
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("*.npy")}
    assert 5 <= len(kept) < 50
    with pytest.raises(ValueError, match=rf"{50 - len(kept)} shards are not there, .* first: encode the rest"):
        Vectors(folder)
    vectors = encode(towns(200), folder, WordEncoder())
    np.testing.assert_array_equal(whole(vectors), WordEncoder().passages(towns(200)))
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert not list(folder.glob("*.part"))


def test_vectors_of_another_corpus_or_encoder_are_refused(tmp_path: Path) -> None:
    encode(towns(9), tmp_path, WordEncoder(), shard_size=4)
    theirs, ours = WordEncoder(seed=0).digest, WordEncoder(seed=1).digest
    with pytest.raises(ValueError, match=f"of the encoder {theirs}, and not of {ours}: remove the folder"):
        encode(towns(9), tmp_path, WordEncoder(seed=1))
    with pytest.raises(ValueError, match=r"of the corpus [0-9a-f]{32}, and not of [0-9a-f]{32}"):
        encode(towns(8), tmp_path, WordEncoder())


def test_faulty_arguments_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the corpus is empty"):
        encode([], tmp_path, WordEncoder())
    with pytest.raises(ValueError, match="shard_size must be at least 1, not 0"):
        encode(towns(1), tmp_path, WordEncoder(), shard_size=0)
    with pytest.raises(ValueError, match="no vectors are here: encode the corpus first"):
        Vectors(tmp_path)
    (tmp_path / "00000.npy").touch()
    with pytest.raises(ValueError, match=r"no vectors\.json that says of what"):
        encode(towns(1), tmp_path, WordEncoder())
    for text in ("{", "[]", '{"format": 1}'):
        (tmp_path / "vectors.json").write_text(text)
        with pytest.raises(ValueError, match=r"vectors\.json: does not describe vectors: .*; remove the folder"):
            encode(towns(1), tmp_path, WordEncoder())


def test_an_encoder_that_gives_too_few_vectors_is_noticed(tmp_path: Path) -> None:
    class Short(WordEncoder):
        def passages(self, passages):
            return super().passages(passages[:1])

    with pytest.raises(ValueError, match=r"was given 3 passages and made vectors of the shape \(1, 16\)"):
        encode(towns(3), tmp_path, Short())


@pytest.mark.parametrize(("progress", "shown"), [(True, True), (False, False), (None, False)])
def test_the_progress_bar(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], progress: bool | None, shown: bool
) -> None:
    encode(towns(30), tmp_path, WordEncoder(), progress=progress)
    out, err = capfd.readouterr()
    assert out == ""
    assert ("30/30" in err) == bool(err) == shown
