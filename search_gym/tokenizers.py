"""What the environment needs of a tokenizer: the embedded one, and any fast Hugging Face one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from search_gym.questions import lexicon
from search_gym.unicode import whole

TAGS = ("<think>", "</think>", "<search>", "</search>", "<answer>", "</answer>")
_INSERTED = ("<information>", "</information>", "<documents>", "</documents>", "(Title:")
_END = "<|end|>"
# A UTF-8 character is at most four bytes, so an id that is still unreadable after three more never will be.
_LONGEST_CHARACTER = 4


class Tokenizer:
    """A `tokenizers.Tokenizer` with what an episode must know of it.

    Args:
        backend: the tokenizer itself.
        eos_ids: ids that end a turn; the first one is the end-of-sequence id.
        bos_id: the id that every prompt begins with; None where prompts have none.
        pad_id: the id that fills arrays; the end-of-sequence id unless given. It is never told apart by its value.
        chat_template: a Jinja template of chat messages, as Hugging Face tokenizers carry it.
        named: the text of tokens by what they are called, such as "bos_token"; chat templates refer to them.
        name: what it was loaded from, for messages.

    Raises:
        ValueError: if a turn could never end, or the tags of actions do not survive it.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_ids: Sequence[int],
        bos_id: int | None = None,
        pad_id: int | None = None,
        chat_template: str | None = None,
        named: Mapping[str, str] | None = None,
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
        self.named = dict(named or {})
        description = json.loads(backend.to_str())
        # Files keep how somebody cut, padded or perturbed batches: here the ids of a text are all of its ids, always.
        description |= {"truncation": None, "padding": None}
        description["model"]["dropout"] = None
        backend = tokenizers.Tokenizer.from_str(json.dumps(description))
        # Vocabularies have gaps, so the greatest id may be past their size.
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        unknown = _unknown_token(description["model"])
        added = {token.content: i for i, token in backend.get_added_tokens_decoder().items() if _reserved(token)}
        self.control_tokens = {content: i for content, i in added.items() if content != unknown}
        self.backend = backend
        # Two views of one vocabulary: text that a template wrote may hold control tokens, text that was retrieved or
        # asked may not, whatever it says.
        self._inert = _without(description, self.control_tokens)
        self._control_ids = frozenset(self.control_tokens.values())
        self._pieces: dict[int, str] = {}
        self.concatenates = (description.get("decoder") or {}).get("type") == "ByteLevel"
        """Whether the text of ids is that of each of them, one after the other, but for characters in parts."""
        for tag in TAGS:
            if self.decode(self.encode(tag)).strip() != tag:
                raise ValueError(f"{name} cannot spell {tag}: it reads {self.decode(self.encode(tag))!r} instead")

    def encode(self, text: str) -> list[int]:
        """Ids of text in which nothing is a control token, not even what is spelled like one."""
        text = whole(text)
        encoding = self._inert.encode(text, add_special_tokens=False)
        if self._control_ids.isdisjoint(encoding.ids):
            return encoding.ids
        # The model itself holds the token as a piece: cut each of them apart after its first character.
        found = zip(encoding.ids, encoding.offsets, strict=True)
        spans = [span for i, span in found if i in self._control_ids]
        parts, start = [], 0
        for begin, end in spans:
            single = end - begin < 2  # nothing to cut: it is left out
            parts.append(text[start : begin if single else begin + 1])
            start = end if single else begin + 1
        return [i for part in (*parts, text[start:]) for i in self.encode(part)]

    def encode_template(self, before: str, inert: str = "", after: str = "") -> list[int]:
        """Ids of a template around text that is `inert`: only the template's own words may be control tokens."""
        # In one piece where that may be, so that tokens span the borders as they do in any other text.
        whole = self._controlled(before + inert + after)
        if not inert or self._control_ids.isdisjoint(whole):
            return whole
        parts = [*self._controlled(before), *self.encode(inert), *self._controlled(after)]
        return whole if self._controls(whole) == self._controls(parts) else parts

    def encode_prompt(self, before: str, inert: str, after: str) -> list[int]:
        """`encode_template` for the beginning of an episode.

        It begins with exactly one beginning-of-sequence id where the tokenizer has one, whether the template wrote it
        or not.
        """
        ids = self.encode_template(before, inert, after)
        if self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens included. Bytes that are no UTF-8 come out as U+FFFD."""
        return self.backend.decode(list(ids), skip_special_tokens=False)

    def piece(self, token: int) -> str:
        """The text of one id by itself, kept once it was asked for."""
        if token not in self._pieces:
            self._pieces[token] = self.decode([token])
        return self._pieces[token]

    def _controlled(self, text: str) -> list[int]:
        # In a batch of one: only batches can leave out the places of tokens in the text, a fifth of the time.
        return self.backend.encode_batch_fast([whole(text)], add_special_tokens=False)[0].ids

    def _controls(self, ids: Sequence[int]) -> list[int]:
        return [i for i in ids if i in self._control_ids]


class TextStream:
    """Reads the text of a growing run of ids, in time linear in their number.

    The text of an id can depend on its neighbours: a character is spread over several ids, a space is left out at the
    beginning. So each new id is decoded together with those that ended the text so far, and with those that are not
    read yet because the character which they begin is not complete.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._before: list[int] = []
        self._read = ""
        """The text of `_before` by itself."""
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        """The characters that `token` completes: often a word, nothing while a character is incomplete."""
        if self.tokenizer.concatenates and not self._pending:
            piece = self.tokenizer.piece(token)
            if not piece.endswith("\ufffd"):
                self._before, self._read = [], ""
                return piece
        self._pending.append(token)
        text = self.tokenizer.decode(self._before + self._pending)
        if not text.endswith("\ufffd"):
            return self._settle(len(self._pending), text)
        if len(self._pending) < _LONGEST_CHARACTER:
            return ""
        # The first of them begins no character that could still be completed; a later one may.
        return self._settle(1, self.tokenizer.decode(self._before + self._pending[:1]))

    def rest(self) -> str:
        """The text of the ids that are not read yet, as it is if no other id follows."""
        return self.tokenizer.decode(self._before + self._pending)[len(self._read) :] if self._pending else ""

    def _settle(self, count: int, text: str) -> str:
        """Take the first pending ids as read; `text` is that of `_before` and theirs."""
        new = text[len(self._read) :]
        # All of them, for the bytes of one character are text together alone.
        self._before, self._pending = self._pending[:count], self._pending[count:]
        self._read = self.tokenizer.piece(*self._before) if count == 1 else self.tokenizer.decode(self._before)
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
        chat_template=_template(source.chat_template),
        named={key: str(token) for key, token in source.special_tokens_map.items() if isinstance(token, str)},
        name=source.name_or_path or type(source).__name__,
    )


def copy_files(source: str, folder: Path) -> None:
    """Copy what makes a tokenizer, as it is, from a folder or hub id into a folder."""
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        if (path := _file(source, name)) is not None:
            shutil.copyfile(path, folder / name)


def _file(source: str, name: str) -> Path | None:
    """A file of a folder or hub id; None where that has no such file."""
    if Path(source).is_dir():
        return Path(source) / name if (Path(source) / name).exists() else None
    from huggingface_hub import hf_hub_download  # what `tokenizers` itself downloads with
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(source, name))
    except Exception as error:
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            return None
        reason = str(error).splitlines()[0]
        raise ValueError(f"no tokenizer at {source!r}: not a folder here, and the hub says: {reason}") from error


def _from_files(source: str) -> Tokenizer:
    vocabulary = _file(source, "tokenizer.json")
    if vocabulary is None:
        raise ValueError(f"no tokenizer.json in {source!r}: save a fast tokenizer there with save_pretrained")
    config, generation = (_json(_file(source, name)) for name in ("tokenizer_config.json", "generation_config.json"))
    template = _file(source, "chat_template.jinja")
    backend = tokenizers.Tokenizer.from_file(str(vocabulary))
    named = {key: text for key in config if key.endswith("_token") and (text := _text(config[key])) is not None}
    # A chat model may end a turn with another token than a text: its generation settings list all of them.
    ends = generation.get("eos_token_id")
    more = ends if isinstance(ends, list) else [] if ends is None else [ends]
    pad = backend.token_to_id(named["pad_token"]) if "pad_token" in named else None
    eos = backend.token_to_id(named["eos_token"]) if "eos_token" in named else None
    return Tokenizer(
        backend,
        eos_ids=list(dict.fromkeys([*([] if eos is None else [eos]), *more])),
        bos_id=_leading_id(backend),
        pad_id=pad,
        chat_template=template.read_text(encoding="utf-8") if template else _template(config.get("chat_template")),
        named=named,
        name=source,
    )


def _json(path: Path | None) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path else {}


def _text(token: Any) -> str | None:
    """The text of a token as tokenizer_config.json writes it: a string, or an object with "content"."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _template(template: Any) -> str | None:
    """The chat template: where there are several by name, the default one."""
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}
    return template.get("default") if isinstance(template, dict) else template


def _reserved(token: tokenizers.AddedToken) -> bool:
    """Whether text that a policy did not write must not become this token: it has a meaning beyond its letters."""
    return token.special or (len(token.content) > 1 and token.content.startswith(("<", "[")))


def _unknown_token(model: dict[str, Any]) -> str | None:
    """What stands for characters that the vocabulary lacks: they may be in any text."""
    if model.get("unk_id") is not None:
        return model["vocab"][model["unk_id"]][0]
    return model.get("unk_token")


def _without(description: dict[str, Any], reserved: Collection[str]) -> tokenizers.Tokenizer:
    """The tokenizer so described, to which some added tokens are plain text."""
    kept = [token for token in description["added_tokens"] if token["content"] not in reserved]
    # The post-processor refers to them, and is never asked to add one.
    return tokenizers.Tokenizer.from_str(json.dumps({**description, "added_tokens": kept, "post_processor": None}))


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
    return Tokenizer(backend, eos_ids=[backend.get_vocab_size(with_added_tokens=True) - 1], name="embedded")


def _embedded_pieces() -> Iterator[str]:
    tags: Collection[str] = (*TAGS, *_INSERTED)
    yield from tags
    yield from (f" {tag}" for tag in tags)
    for word in lexicon.words():
        yield f" {word}"
    yield "Question:"
    yield from ("\n\n", "Doc", "Title:")
