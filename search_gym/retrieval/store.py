"""Passages on disk, memory-mapped: a corpus of any size opens at once and takes no memory until it is read."""

from __future__ import annotations

import hashlib
import json
import mmap
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from search_gym.retrieval import Passage

_TEXTS, _ENDS = "passages.bin", "ends.npy"
MANIFEST = "manifest.json"
"""The file of a folder that is written last: where it is, the folder is whole."""
FORMAT = 1


class PassageStore(Sequence[Passage]):
    """The passages of a folder that `write` made, in order.

    A folder holds the strings of all passages one after another (`passages.bin`: id, title, text, id, title, text, …),
    the byte at which each ends (`ends.npy`), and `manifest.json`, which is written last: without it the folder is not
    whole.

    Raises:
        ValueError: if the folder is no whole store, or its files do not fit each other; the message says what to do.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        manifest = read_manifest(folder / MANIFEST, "passages", ["passages", "digest", "source", "stamp"])
        self.digest: str = manifest["digest"]
        """Of ids, titles and texts in their order: see `passages_digest`."""
        self.source: str = manifest["source"]
        """Where the passages came from, for people."""
        self.stamp: str = manifest["stamp"]
        """What the source was when they were read: see `search_gym.retrieval.corpus.stamp`."""
        self._ends = open_array(folder / _ENDS)
        texts = folder / _TEXTS
        last = int(self._ends[-1, -1])
        if len(self._ends) != manifest["passages"] or texts.stat().st_size != last:
            raise ValueError(
                f"{folder}: its manifest tells of {manifest['passages']} passages, its files hold {len(self._ends)} in "
                f"{texts.stat().st_size} of {last} bytes: build it again"
            )
        with texts.open("rb") as file:
            self._texts = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __reduce__(self) -> tuple[type[PassageStore], tuple[Path]]:
        return PassageStore, (self.folder,)  # another process maps the files itself

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Passage: ...
    @overload
    def __getitem__(self, index: slice) -> list[Passage]: ...
    def __getitem__(self, index: int | slice) -> Passage | list[Passage]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]  # negative ones count from the end, and what is outside raises IndexError
        start = int(self._ends[place - 1, 2]) if place else 0
        first, second, end = self._ends[place].tolist()
        texts = self._texts
        return Passage(_decoded(texts[start:first]), _decoded(texts[first:second]), _decoded(texts[second:end]))

    def __iter__(self) -> Iterator[Passage]:
        return (self[place] for place in range(len(self)))


def write(passages: Iterable[Passage], folder: Path, source: str, stamp: str = "") -> PassageStore:
    """Write a store, in memory that does not grow with the corpus but for 24 bytes a passage.

    Args:
        passages: whose ids differ: who reads them sees to it.
        folder: is made; what an interrupted call left in it is replaced.
        source: where the passages came from, for people.
        stamp: what the source is now, to tell later whether it is still the same.

    Raises:
        ValueError: if there is no passage.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    digest, ends, place = _Digest(), array("q"), 0
    with (folder / _TEXTS).open("wb") as texts:
        for passage in passages:
            for string in _strings(passage):
                content = _encoded(string)
                digest.update(content)
                place += texts.write(content)
                ends.append(place)
    if not place:
        raise ValueError(f"{source}: the corpus is empty: there is nothing to search in")
    np.save(folder / _ENDS, np.frombuffer(ends, np.int64).reshape(-1, 3), allow_pickle=False)
    manifest = {"passages": len(ends) // 3, "digest": digest.text(), "source": source, "stamp": stamp}
    write_manifest(folder / MANIFEST, manifest)
    return PassageStore(folder)


def is_whole(folder: Path) -> bool:
    """Whether a folder has its manifest, and so all that was to be written there."""
    return (folder / MANIFEST).is_file()


def passages_digest(passages: Sequence[Passage]) -> str:
    """32 hexadecimal digits that name the passages: their ids, titles and texts, in order. A store knows its own."""
    known = getattr(passages, "digest", None)
    return known if isinstance(known, str) else digest_of(passages)


def digest_of(passages: Iterable[Passage]) -> str:
    """`passages_digest` of passages that come one by one."""
    digest = _Digest()
    for passage in passages:
        for string in _strings(passage):
            digest.update(_encoded(string))
    return digest.text()


def json_digest(content: Any) -> str:
    """32 hexadecimal digits that name something that JSON can hold."""
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def write_manifest(path: Path, content: dict[str, Any]) -> None:
    """Write a manifest, which is either there as a whole or not at all: after all other files of its folder."""
    part = path.with_name(f"{path.name}.part")
    text = json.dumps({"format": FORMAT, **content}, indent=1, ensure_ascii=False)
    part.write_text(f"{text}\n", encoding="utf-8")
    part.replace(path)


def open_array(path: Path) -> np.ndarray:
    """The array of an .npy file, memory-mapped. Raises ValueError if it holds none, or one of Python objects."""
    try:
        # Unlike np.load this takes no archive for an array. A plain view: slices of np.memmap itself take several times
        # as long.
        return np.lib.format.open_memmap(path, mode="r").view(np.ndarray)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} holds no array ({error}): build the index again") from error


def read_manifest(path: Path, what: str, keys: Sequence[str]) -> dict[str, Any]:
    """The content of a manifest.

    Args:
        path: of the file.
        what: is in the folder, for errors.
        keys: that it must have.

    Raises:
        ValueError: if it is not there, lacks a key, or is of another format than this version reads.
    """
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise ValueError(f"its format is {manifest['format']}, and this version reads {FORMAT}")
        missing = [key for key in keys if key not in manifest]
        if missing:
            raise ValueError(f"it lacks {', '.join(missing)}")
        return manifest
    except FileNotFoundError as error:
        raise ValueError(f"{path.parent}: no {what} here, or not all of it: build the index (again)") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not the manifest of the {what} ({error}): build the index again") from error


class _Digest:
    """Of a sequence of strings: each goes in with its length, so that no two sequences share what is hashed."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def update(self, content: bytes) -> None:
        self._hash.update(len(content).to_bytes(8, "little"))
        self._hash.update(content)

    def text(self) -> str:
        return self._hash.hexdigest()


def _strings(passage: Passage) -> tuple[str, str, str]:
    return passage.id, passage.title, passage.text


# Half a surrogate pair is valid in JSON ("\ud800") and in a str, and must come back as it was.
def _encoded(string: str) -> bytes:
    return string.encode("utf-8", "surrogatepass")


def _decoded(content: bytes) -> str:
    return content.decode("utf-8", "surrogatepass")
