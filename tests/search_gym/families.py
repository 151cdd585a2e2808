"""A tokenizer of each family that language models use, small and made on the spot."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

import tokenizers as hf
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from search_gym.tokenizers import Tokenizer, embedded

TEXTS = [
    "<think> I need the capital </think> <search> who wrote it </search>\n\n",
    "<answer> a name </answer>\n\n<information>Doc 1(Title: Oslo) Oslo is café 東京 😀.</information>",
    "a < b > c </ d >\n x=y; don't stop, it's 3.14!  two  spaces",
] * 9
END, BEGIN = "<|im_end|>", "<s>"
SPECIAL = ["<unk>", BEGIN, "</s>", END]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def wrap(backend: hf.Tokenizer, name: str, *, bos: bool = False, extra: tuple[str, ...] = ()) -> Tokenizer:
    leading = None
    if bos:
        leading = backend.token_to_id(BEGIN)
        backend.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
            f"{BEGIN} $A", special_tokens=[(BEGIN, leading)]
        )
    ends = [backend.get_vocab()[token] for token in (END, *extra)]
    return Tokenizer(backend, eos_ids=ends, bos_id=leading, name=name)


def byte_level(*, bos: bool = False, gpt: bool = False, tags: str = "") -> Tokenizer:
    """Byte-level BPE; with `gpt`, words are split as GPT-4 and its kin do, so ">\\n\\n" can be one token."""
    backend = hf.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(r" ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"), "isolated")
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not gpt)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, whole]) if gpt else whole  # pyright: ignore
    backend.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        show_progress=False,
        special_tokens=[BEGIN, "</s>", END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(TEXTS, trainer)
    if tags:
        backend.add_tokens([AddedToken(tag, special=tags == "special") for tag in ("<search>", "</search>")])
    return wrap(backend, f"byte-level {bos=} {gpt=} {tags=}", bos=bos)


def metaspace(*, unigram: bool, llama: bool, bos: bool = False) -> Tokenizer:
    """As sentencepiece has it: "▁" for spaces and bytes for what no piece covers, decoded in the manner of Llama 2."""
    if unigram:
        base = hf.Tokenizer(models.Unigram())
        base.pre_tokenizer = pre_tokenizers.Metaspace()  # pyright: ignore[reportAttributeAccessIssue]
        base.train_from_iterator(
            TEXTS,
            trainers.UnigramTrainer(vocab_size=200, show_progress=False, special_tokens=SPECIAL, unk_token="<unk>"),
        )
        pieces = sorted(base.get_vocab(), key=base.get_vocab().__getitem__)[len(SPECIAL) :]
        # Control tokens are pieces of the model itself, with the best of scores, as in the files of T5 and Llama.
        scores = [(p, 0.0) for p in SPECIAL] + [(b, -20.0) for b in BYTES] + [(p, -3.0 - len(p) / 99) for p in pieces]
        backend = hf.Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=True))
        backend.add_special_tokens(SPECIAL)
    else:
        base = hf.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
        base.pre_tokenizer = pre_tokenizers.Metaspace()  # pyright: ignore[reportAttributeAccessIssue]
        trainer = trainers.BpeTrainer(vocab_size=560, show_progress=False, special_tokens=[*SPECIAL, *BYTES])
        base.train_from_iterator(TEXTS, trainer)
        description = json.loads(base.to_str())
        # The trainer makes added tokens of the bytes; in real vocabularies they are pieces like any other.
        description["added_tokens"] = [t for t in description["added_tokens"] if t["content"] in SPECIAL]
        backend = hf.Tokenizer.from_str(json.dumps(description))
    if llama:
        backend.pre_tokenizer = None  # pyright: ignore[reportAttributeAccessIssue]
        backend.normalizer = normalizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        backend.decoder = decoders.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")  # pyright: ignore
        backend.decoder = decoders.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
            [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first"), decoders.Fuse()]
        )
    return wrap(backend, f"metaspace {unigram=} {llama=} {bos=}", bos=bos, extra=("</s>",))


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "embedded": embedded,
    "byte-level": byte_level,
    "byte-level with bos": lambda: byte_level(bos=True),
    "byte-level, line breaks in tokens": lambda: byte_level(gpt=True),
    "byte-level, tags are special tokens": lambda: byte_level(tags="special"),
    "byte-level, tags are added tokens": lambda: byte_level(gpt=True, tags="plain"),
    "unigram": lambda: metaspace(unigram=True, llama=False),
    "unigram, llama's decoder": lambda: metaspace(unigram=True, llama=True, bos=True),
    "bpe with byte fallback": lambda: metaspace(unigram=False, llama=False),
    "bpe with byte fallback, llama's decoder": lambda: metaspace(unigram=False, llama=True, bos=True),
}


@cache
def family(name: str) -> Tokenizer:
    """The tokenizer of a family, made once."""
    return FAMILIES[name]()


@cache
def spelled(name: str) -> dict[bytes, list[int]]:
    """The ids that stand for each run of bytes, control tokens left out (but tags, which a policy may sample)."""
    tokenizer, table = family(name), {}
    alphabet = {character: byte for byte, character in _byte_characters().items()}
    for token, i in sorted(tokenizer.backend.get_vocab(with_added_tokens=True).items()):
        if token in tokenizer.control_tokens or token == "<unk>":
            if "search>" not in token:
                continue
            raw = token.encode()
        elif token in BYTES:
            raw = bytes([BYTES.index(token)])
        elif "metaspace" in tokenizer.name:
            raw = token.replace("▁", " ").encode()
        else:
            raw = bytes(alphabet[character] for character in token)
        table.setdefault(raw, []).append(i)
    return table


def _byte_characters() -> dict[int, str]:
    """The character that byte-level vocabularies write for each byte (GPT-2's table)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
