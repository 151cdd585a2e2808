"""Actions are read out of text, however tokens split it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_gym import tokenizers
from search_gym.actions import TurnReader

EMBEDDED = tokenizers.embedded()
TAGS = ["<search>", "</search>", "<answer>", "</answer>", "<think>", "</think>"]
PIECES = st.sampled_from([*TAGS, "<", ">", "</", "search", " Oslo", "é", "\n"])


def bytewise(text: str) -> list[int]:
    """The ids that spell a text byte by byte: the finest split there is."""
    return [EMBEDDED.encode(chr(b))[0] if b < 128 else byte_id(b) for b in text.encode()]


def byte_id(value: int) -> int:
    # Two-byte characters cover every byte that can begin or go on in a character.
    for character in (chr(c) for c in range(0x80, 0x20000, 0x3F)):
        raw = character.encode()
        if value in raw:
            return EMBEDDED.encode(character)[raw.index(value)]
    raise AssertionError(value)


def read(ids: list[int]) -> tuple[str | None, str | None, int]:
    """What a turn is closed by, its body, and how many ids that took."""
    reader = TurnReader(EMBEDDED)
    for count, i in enumerate(ids, start=1):
        if reader.push(i):
            return reader.closed_by, reader.body(), count
    return None, reader.body(), len(ids)


@given(st.lists(PIECES).map("".join))
def test_a_turn_reads_the_same_however_it_is_split(text: str) -> None:
    coarse, fine = read(EMBEDDED.encode(text)), read(bytewise(text))
    assert coarse[:2] == fine[:2]
    first = re.search("</search>|</answer>", text)
    assert coarse[0] == (first[0] if first else None)


@pytest.mark.parametrize(
    ("text", "closed_by", "body"),
    [
        ("<search> who wrote it </search>", "</search>", "who wrote it"),
        ("I think <answer>Paris</answer>", "</answer>", "Paris"),
        ("<answer></answer>", "</answer>", ""),
        ("</search> x <search>", "</search>", None),
        ("<search>a<search>b</search>", "</search>", None),
        ("<search>a<answer>b</answer>", "</answer>", "b"),
        ("<answer>a<search>b</search>", "</search>", "b"),
        ("<answer>a<search>b</answer>", "</answer>", None),
        ("<think>..<answer>P</answer>", "</answer>", "P"),
        ("<search>a", None, None),
    ],
)
def test_bodies(text: str, closed_by: str | None, body: str | None) -> None:
    assert read(EMBEDDED.encode(text))[:2] == (closed_by, body)


def test_a_turn_ends_with_the_token_that_closes_it() -> None:
    ids = EMBEDDED.encode("<search> Oslo </search>")
    assert read(ids + EMBEDDED.encode("\n\nmore"))[2] == len(ids)
