"""What the environment needs of a tokenizer: the embedded one, and any fast Hugging Face one."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from search_gym.questions import lexicon

TAGS = ("<think>", "</think>", "<search>", "</search>", "<answer>", "</answer>")
_INSERTED = ("<information>", "</information>", "<documents>", "</documents>", "(Title:")
_END = "<|end|>"
# A UTF-8 character is at most four bytes, so text that is still unreadable after four more tokens never will be.
_LONGEST_CHARACTER = 4


class Tokenizer:
    """A `tokenizers.Tokenizer` with what an episode must know of it.

    Args:
        backend: the tokenizer itself.
        eos_ids: ids that end a turn; the first one is the end-of-sequence id.
        bos_id: the id that every prompt begins with; None where prompts have none.
        pad_id: the id that fills arrays; the end-of-sequence id unless given. It is never told apart by its value.
        chat_template: a Jinja template of chat messages, as Hugging Face tokenizers carry it.
        name: what it was loaded from, for messages.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_ids: Sequence[int],
        bos_id: int | None = None,
        pad_id: int | None = None,
        chat_template: str | None = None,
        name: str = "tokenizer",
    ) -> None:
        if not eos_ids:
            raise ValueError(f"{name} has no end-of-sequence token: a turn could never end by it; set one")
        self.name = name
        self.eos_ids = frozenset(eos_ids)
        self.eos_id = eos_ids[0]
        self.bos_id = bos_id
        self.pad_id = eos_ids[0] if pad_id is None else pad_id
        self.chat_template = chat_template
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        self.control_tokens = {t.content: i for i, t in backend.get_added_tokens_decoder().items() if t.special}
        self.backend = backend
        # Two views of one vocabulary: text that a template wrote may hold control tokens, text that was retrieved or
        # asked may not, whatever it says.
        self._inert = tokenizers.Tokenizer.from_str(backend.to_str())
        self._inert.encode_special_tokens = True

    def encode(self, text: str) -> list[int]:
        """Ids of text in which nothing is a control token, not even what is spelled like one."""
        return self._inert.encode(text, add_special_tokens=False).ids

    def encode_prompt(self, before: str, inert: str, after: str) -> list[int]:
        """Ids of a prompt: `inert` is a question, the rest is a template that may hold control tokens.

        It begins with exactly one beginning-of-sequence id where the tokenizer has one, whether the template wrote it
        or not.
        """
        if any(token in inert for token in self.control_tokens):
            parts = self._controlled(before), self.encode(inert), self._controlled(after)
            ids = [i for part in parts for i in part]
        else:  # in one piece, so that tokens span the borders as they do in any other text
            ids = self._controlled(before + inert + after)
        if self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens included. Bytes that are no UTF-8 come out as U+FFFD."""
        return self.backend.decode(list(ids), skip_special_tokens=False)

    def _controlled(self, text: str) -> list[int]:
        return self.backend.encode(text, add_special_tokens=False).ids


class TextStream:
    """Reads the text of a growing run of ids, in time linear in their number.

    The text of an id can depend on its neighbours (a character spread over several tokens, a leading space), so each
    new id is decoded together with the few before it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        """The characters that `token` completes: often a word, nothing while a character is incomplete."""
        self._pending.append(token)
        text = self._tokenizer.decode(self._context + self._pending)
        if text.endswith("\ufffd") and len(self._pending) < _LONGEST_CHARACTER:
            return ""
        new = text[len(self._context_text) :]
        self._context, self._pending = self._pending, []
        self._context_text = self._tokenizer.decode(self._context)
        return new


def load(source: str | Path | Any = "embedded") -> Tokenizer:
    """A tokenizer by name, path or object.

    Args:
        source: "embedded"; a folder with tokenizer.json and tokenizer_config.json; the id of a model on the Hugging
            Face hub; a fast Hugging Face tokenizer; or a `Tokenizer`, which comes back as it is.

    Raises:
        ValueError: if there is no tokenizer at that place, or it is not a fast one.
    """
    if isinstance(source, Tokenizer):
        return source
    if isinstance(source, str | Path):
        return embedded() if source == "embedded" else _from_files(str(source))
    backend = getattr(source, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise ValueError(
            f"cannot use {type(source).__name__} as a tokenizer: give 'embedded', a folder with tokenizer.json, a hub "
            "id, or a fast Hugging Face tokenizer"
        )
    eos = source.eos_token_id
    return Tokenizer(
        backend,
        eos_ids=[] if eos is None else [eos],
        bos_id=_leading_id(backend),
        pad_id=source.pad_token_id,
        chat_template=source.chat_template,
        name=source.name_or_path or type(source).__name__,
    )


def _from_files(source: str) -> Tokenizer:
    def file(name: str) -> Path | None:
        if Path(source).is_dir():
            return Path(source) / name if (Path(source) / name).exists() else None
        from huggingface_hub import hf_hub_download  # what `tokenizers` itself downloads with
        from huggingface_hub.errors import EntryNotFoundError

        try:
            return Path(hf_hub_download(source, name))
        except EntryNotFoundError:
            return None
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"no tokenizer at {source!r}: not a folder here, and the hub says: {reason}") from error

    vocabulary, settings = file("tokenizer.json"), file("tokenizer_config.json")
    if vocabulary is None:
        raise ValueError(f"no tokenizer.json in {source!r}: save a fast tokenizer there with save_pretrained")
    config = json.loads(settings.read_text(encoding="utf-8")) if settings else {}
    template = file("chat_template.jinja")
    backend = tokenizers.Tokenizer.from_file(str(vocabulary))
    return Tokenizer(
        backend,
        eos_ids=_ids(backend, config.get("eos_token")),
        bos_id=_leading_id(backend),
        pad_id=next(iter(_ids(backend, config.get("pad_token"))), None),
        chat_template=template.read_text(encoding="utf-8") if template else config.get("chat_template"),
        name=source,
    )


def _ids(backend: tokenizers.Tokenizer, token: str | dict[str, Any] | None) -> list[int]:
    """The id of a token as tokenizer_config.json writes it: a string, or an object with "content"."""
    content = token["content"] if isinstance(token, dict) else token
    found = None if content is None else backend.token_to_id(content)
    return [] if found is None else [found]


def _leading_id(backend: tokenizers.Tokenizer) -> int | None:
    """The id that the tokenizer itself puts before a text, if it puts one there."""
    with_special = backend.encode("a", add_special_tokens=True)
    return with_special.ids[0] if with_special.special_tokens_mask[0] else None


@cache
def embedded() -> Tokenizer:
    """The tokenizer of the embedded world: a token for each of its words and tags, and one for each byte.

    Every text has ids, and its ids give back the same text. About 750 ids; "<|end|>", the last, ends a sequence.
    """
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    def spelled(text: str) -> str:
        return byte_level.pre_tokenize_str(text)[0][0]

    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = dict.fromkeys([*bytes_, *map(spelled, _embedded_pieces())])
    # A Unigram model takes the split of the highest total score: with equal scores, the one with the fewest pieces.
    # Bytes score far less, so they only spell what no word covers.
    vocabulary = [(piece, -100.0 if len(piece) == 1 else -1.0) for piece in pieces]
    backend = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=None, byte_fallback=False))
    backend.pre_tokenizer = byte_level  # pyright: ignore[reportAttributeAccessIssue]
    backend.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    backend.add_special_tokens([_END])
    return Tokenizer(backend, eos_ids=_ids(backend, _END), name="embedded")


def _embedded_pieces() -> Iterator[str]:
    tags: Collection[str] = (*TAGS, *_INSERTED)
    yield from tags
    yield from (f" {tag}" for tag in tags)
    for word in lexicon.words():
        yield f" {word}"
    yield "Question:"
    yield from ("\n\n", "Doc", "Title:")
