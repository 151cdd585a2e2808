"""`search-gym score`: exact match, F1 and, where asked for, a reward of recorded responses."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from search_gym import jsonl, prompts, rewards
from search_gym.questions.rows import answers
from search_gym.rewards import Outcome, Reward

PieceKind = Literal["policy", "retrieved", "notice"]

# What Search-R1's own environment answers to an action that it cannot read: its recordings hold it, tags included.
_SEARCH_R1_NOTICE = (
    "My previous action is invalid. If I want to search, I should put the query between <search> and </search>. If I "
    "want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again."
)


def _any(words: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(word.strip()) for word in sorted(set(words))))


_TEMPLATES = prompts.TEMPLATES.values()
_OPENING = _any(template.opening for template in _TEMPLATES)
_CLOSING = _any(template.closing for template in _TEMPLATES)
_NOTICE = _any([_SEARCH_R1_NOTICE, *(t.unreadable for t in _TEMPLATES), *(t.no_search_left for t in _TEMPLATES)])


@dataclass(frozen=True)
class Score:
    """One scored response."""

    prediction: str | None
    """The answer that the policy gave; None where it gave none."""
    em: float
    f1: float
    row: jsonl.Row
    """The row as it was read."""
    reward: float | None = None
    """What the reward that was asked for gives; None where none was."""

    def to_row(self) -> jsonl.Row:
        """The row to write: `id` where there was one, `prediction`, `em`, `f1`, `reward` where one was asked for."""
        named = {"id": self.row["id"]} if "id" in self.row else {}
        rewarded = {} if self.reward is None else {"reward": self.reward}
        return {**named, "prediction": self.prediction, "em": self.em, "f1": self.f1, **rewarded}


def pieces(response: str) -> Iterator[tuple[PieceKind, str]]:
    """A recorded response in pieces, each with what it is; their texts together are the response.

    Retrieved passages stand in `<information>…</information>` or `<documents>…</documents>`. Passages may hold such
    tags themselves, so the last closing tag before the next opening one counts, and what is never closed was cut in the
    middle of a passage. One thing text cannot tell: whether a passage closes a block and opens another, or there are
    two. Where ids and masks are at hand, as in a `Trajectory`, use those.
    """
    bounds = [*(match.start() for match in _OPENING.finditer(response)), len(response)]
    yield from _own_pieces(response[: bounds[0]])
    for start, stop in pairwise(bounds):
        block = response[start:stop]
        closings = [match.end() for match in _CLOSING.finditer(block)]
        end = closings[-1] if closings else len(block)
        yield "retrieved", block[:end]
        if closings:
            yield from _own_pieces(block[end:])


def _own_pieces(text: str) -> Iterator[tuple[PieceKind, str]]:
    """Text without passages: the policy's, and the notices in it."""
    end = 0
    for match in _NOTICE.finditer(text):
        yield "policy", text[end : match.start()]
        yield "notice", match.group()
        end = match.end()
    yield "policy", text[end:]


def own_text(response: str) -> list[str]:
    """The policy's own text in a recorded response, as `pieces` finds it: what the environment inserted is left out."""
    return [text for kind, text in pieces(response) if kind == "policy"]


def predict(response: str) -> str | None:
    """The answer that a recorded response gives, as `rewards.extract_answer` reads it; None where it gives none.

    No tag reaches over what the environment inserted, since that ended the policy's turn.
    """
    answers = map(rewards.extract_answer, own_text(response))
    return next((answer for answer in answers if answer is not None), None)


def outcome(response: str, golds: Sequence[str]) -> Outcome:
    """What a reward judges of a recorded response: each piece of `own_text` that is not blank is a turn."""
    return Outcome(predict(response), tuple(golds), tuple(own for own in own_text(response) if own.strip()))


def load(path: str | PathLike[str], reward: str | Reward | None = None) -> list[Score]:
    """Score a file of rows with `response` and `golden_answers`.

    Args:
        path: a JSONL file.
        reward: what `rewards.make` takes, to be given besides exact match and F1.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: "file:line: reason", if a line is no such row; or if the file is empty, or the reward unknown.
    """
    judge = None if reward is None else rewards.make(reward)
    scores = [score for _, score in jsonl.read(path, lambda row: _score(row, judge))]
    if not scores:
        raise ValueError(f"{path}: the file is empty: it needs rows with response and golden_answers")
    return scores


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("file", type=Path, help="JSONL, rows with response and golden_answers")
    parser.add_argument("--out", type=Path, help="write id, prediction and scores of each row to this JSONL file")
    parser.add_argument("--reward", help="score by a reward as well, for example cover, format or em+0.2*format")


def run(args: argparse.Namespace) -> int:
    """Print the number of rows and the means; write a row each where asked to."""
    scores = load(args.file, args.reward)
    if args.out is not None:
        if args.out.exists() and args.out.samefile(args.file):
            raise ValueError(f"--out {args.out} is the file that is read: choose another name")
        _write(args.out, (score.to_row() for score in scores))
    print(f"rows {len(scores)}")
    print(f"EM   {fmean(score.em for score in scores):.4f}")
    print(f"F1   {fmean(score.f1 for score in scores):.4f}")
    rewarded = [score.reward for score in scores if score.reward is not None]
    if rewarded:
        print(f"{args.reward} {fmean(rewarded):.4f}")
    return 0


def _score(row: jsonl.Row, judge: Reward | None) -> Score:
    ended = outcome(jsonl.text(row, "response"), answers(row))
    em, f1 = rewards.exact_match(ended.answer, ended.golds), rewards.token_f1(ended.answer, ended.golds)
    reward = None if judge is None else rewards.evaluate(judge, ended, str(row.get("id", "")))
    return Score(ended.answer, em, f1, row, reward)


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
