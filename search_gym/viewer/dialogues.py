"""What the page shows of one dialogue, made of a `Trajectory` or of a recorded response."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from search_gym import jsonl, rewards, score
from search_gym.questions.rows import answers
from search_gym.tokenizers import TextStream, Tokenizer
from search_gym.trajectory import Trajectory, Turn

SpanKind = Literal["prompt", "policy", "retrieved", "notice", "unknown"]
MEASURES = ("ratio", "advantage", "entropy")
"""What `Trajectory.extra["tokens"]` may hold beside the log-probs of the trajectory itself."""


@dataclass(frozen=True)
class Span:
    """A run of pieces that one party wrote."""

    kind: SpanKind
    begin: int
    """Its first piece."""
    end: int
    """One past its last piece."""
    note: str = ""
    """What a turn was read as, or what became of a search."""


@dataclass(frozen=True)
class Origin:
    """Where a dialogue comes from; what is unknown is empty or None."""

    file: str = ""
    """Relative to what was opened."""
    line: int = 0
    """From 1."""
    algorithm: str = ""
    seed: int | None = None
    step: int | None = None


@dataclass(frozen=True)
class Dialogue:
    """One dialogue, cut into pieces: its tokens, or its spans where no tokenizer is known.

    Raises:
        ValueError: if the lengths do not cover the text, or the spans not the pieces.
    """

    text: str
    """Prompt and response."""
    lengths: tuple[int, ...]
    """The length of each piece in UTF-16 units, which JavaScript counts in. A character of several tokens belongs to
    the last of them, the others have 0."""
    spans: tuple[Span, ...]
    """From the first piece to the last, without gaps."""
    tokens: bool
    """Whether the pieces are tokens."""
    question_id: str
    question: str
    golds: tuple[str, ...]
    answer: str | None
    end: str
    """How it ended: "answered", "turns" or "context" for a budget that ran out, "no answer"."""
    searches: int
    reward: float | None = None
    em: float | None = None
    f1: float | None = None
    values: dict[str, float | list[float | None]] = field(default_factory=dict)
    """By name of the measure: a value for each token of the policy, in order; one number for all of them; nothing where
    it was not recorded."""
    origin: Origin = field(default_factory=Origin)

    def __post_init__(self) -> None:
        if sum(self.lengths) != utf16_length(self.text):
            raise ValueError(f"the pieces are {sum(self.lengths)} long and the text {utf16_length(self.text)}")
        bounds = [0, *(span.end for span in self.spans)]
        if [span.begin for span in self.spans] != bounds[:-1] or bounds[-1] != len(self.lengths):
            raise ValueError(f"the spans {self.spans} do not cover {len(self.lengths)} pieces without gaps")


def of_trajectory(trajectory: Trajectory, tokenizer: Tokenizer | None, origin: Origin) -> Dialogue:
    """A trajectory: token by token where the tokenizer gives back its text, by spans where not.

    Raises:
        ValueError: if values of tokens are not as many as there are ids, or turns do not follow each other.
    """
    spans = _spans(trajectory)
    values = _values(trajectory, spans)
    pieces = [] if tokenizer is None else cut(trajectory.ids, tokenizer)
    text = trajectory.text or "".join(pieces)
    tokens = bool(pieces) and "".join(pieces) == text
    if not tokens:
        spans, pieces = _by_text(trajectory, spans)
        values = {}
    return Dialogue(
        text=text,
        lengths=tuple(map(utf16_length, pieces)),
        spans=tuple(span for span in spans if span.end > span.begin),
        tokens=tokens,
        question_id=trajectory.question_id,
        question=trajectory.question,
        golds=trajectory.golds,
        answer=trajectory.answer,
        end="answered" if trajectory.terminated else trajectory.truncated or "no answer",
        searches=trajectory.searches,
        reward=number(trajectory.reward, "reward"),
        em=number(trajectory.em, "em"),
        f1=number(trajectory.f1, "f1"),
        values=values,
        origin=origin,
    )


def of_recorded(row: jsonl.Row, origin: Origin) -> Dialogue:
    """A recorded response, by spans. What the row does not say is worked out: its answer, and with golden_answers EM.

    Raises:
        ValueError: if `response` is no string, or another field not what its name says.
    """
    prompt, response = row.get("prompt", ""), jsonl.text(row, "response")
    if not isinstance(prompt, str):
        raise ValueError(f'"prompt" must be a string, not {type(prompt).__name__}')
    parts: list[tuple[SpanKind, str]] = [("prompt", prompt), *score.pieces(response)]
    parts = [(kind, text) for kind, text in parts if text]
    golds = answers(row) if "golden_answers" in row else ()
    answer = row["prediction"] if "prediction" in row else score.predict(response)
    computed = {"em": rewards.exact_match(answer, golds), "f1": rewards.token_f1(answer, golds)} if golds else {}
    reward, em, f1 = (number(row.get(name, computed.get(name)), name) for name in ("reward", "em", "f1"))
    return Dialogue(
        text=prompt + response,
        lengths=tuple(utf16_length(text) for _, text in parts),
        spans=tuple(Span(kind, place, place + 1) for place, (kind, _) in enumerate(parts)),
        tokens=False,
        question_id=str(row.get("id", "")),
        question=str(row.get("question", "")),
        golds=golds,
        answer=None if answer is None else str(answer),
        end="no answer" if answer is None else "answered",
        searches=sum(kind == "retrieved" for kind, _ in parts),
        reward=reward,
        em=em,
        f1=f1,
        origin=origin,
    )


def cut(ids: Sequence[int], tokenizer: Tokenizer) -> list[str]:
    """The text of each id; that of a character in parts belongs to the last of them."""
    stream = TextStream(tokenizer)
    pieces = [stream.push(token) for token in ids]
    if pieces:
        pieces[-1] += stream.rest()
    return pieces


def utf16_length(text: str) -> int:
    """The length of a text as JavaScript counts it."""
    return len(text) + sum(character > "\uffff" for character in text)


def number(value: Any, name: str) -> float | None:
    """A number of a file, to six digits; None for None and for what is not finite. ValueError: it is no number."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f'"{name}" must be a number, not {value!r:.40}')
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _spans(trajectory: Trajectory) -> list[Span]:
    """The prompt, two spans for each turn, the turn that has begun; some may be empty."""
    spans = [Span("prompt", 0, trajectory.prompt_length)]
    for number, turn in enumerate(trajectory.turns, start=1):
        spans.append(Span("policy", *turn.policy, _turn_note(turn)))
        spans.append(Span("notice" if turn.kind == "invalid" else "retrieved", *turn.inserted, _search_note(turn)))
        for before, span in pairwise(spans[-3:]):
            if not before.end == span.begin <= span.end <= len(trajectory.ids):
                raise ValueError(
                    f"turn {number}: ids {span.begin} to {span.end} do not follow on id {before.end}, or are not among "
                    f"the {len(trajectory.ids)} ids"
                )
    return [*spans, Span("policy", spans[-1].end, len(trajectory.ids))]


def _turn_note(turn: Turn) -> str:
    return f"{turn.kind}: {turn.argument}" if turn.kind in ("invalid", "unfinished") else turn.kind


def _search_note(turn: Turn) -> str:
    if turn.failed:
        return f"the search failed: {turn.failed}"
    if turn.kind != "search":
        return ""
    found = f"{len(turn.hits)} passage{'' if len(turn.hits) == 1 else 's'}"
    return f"{found}, cut to fit" if turn.cut else found


def _by_text(trajectory: Trajectory, spans: Sequence[Span]) -> tuple[list[Span], list[str]]:
    """The spans by the texts of the turns, one piece each; one piece for all where they are not found in the text.

    Read from the end, for a prompt may show turns just like them.
    """
    parts: list[tuple[SpanKind, str, str]] = []
    end, text = len(trajectory.text), trajectory.text
    own = [turn.text for turn in trajectory.turns]
    for place, turn in reversed(list(enumerate(own))):
        begin = text.rfind(turn, 0, end)
        if begin < 0:
            return [Span("unknown", 0, 1)], [text]
        written, inserted = spans[2 * place + 1], spans[2 * place + 2]
        after = text[begin + len(turn) : end]
        parts = [(written.kind, turn, written.note), (inserted.kind, after, inserted.note), *parts]
        end = begin
    parts = [part for part in [("prompt", text[:end], ""), *parts] if part[1]]
    return [Span(kind, at, at + 1, note) for at, (kind, _, note) in enumerate(parts)], [part for _, part, _ in parts]


def _values(trajectory: Trajectory, spans: Sequence[Span]) -> dict[str, float | list[float | None]]:
    """By name of the measure, the values of the policy's tokens."""
    places = [place for span in spans if span.kind == "policy" for place in range(span.begin, span.end)]
    found: dict[str, float | list[float | None]] = {}
    if any(trajectory.logprobs):  # all are 0.0 where the sampler handed none in
        found["logprob"] = _picked(trajectory.logprobs, places, len(trajectory.ids), "logprobs")
    recorded = trajectory.extra.get("tokens") or {}
    if not isinstance(recorded, dict):
        raise ValueError(f'extra "tokens" must be an object of lists, not {type(recorded).__name__}')
    for name in MEASURES:
        value = recorded.get(name)
        if isinstance(value, list):
            found[name] = _picked(value, places, len(trajectory.ids), f"extra.tokens.{name}")
        elif (single := number(value, f"extra.tokens.{name}")) is not None:
            found[name] = single
    return found


def _picked(values: Sequence[Any], places: Sequence[int], count: int, name: str) -> list[float | None]:
    if len(values) != count:
        raise ValueError(f'"{name}" has {len(values)} values for {count} ids: write one for each id')
    return [number(values[place], name) for place in places]
