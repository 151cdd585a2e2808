"""What an episode is worth: scores of an answer, a check of the format, and sums of them that a text describes.

The scores of an answer are pure functions of strings. All of them lie in [0, 1] and take the best over the accepted
answers. An accepted answer that normalises to nothing ("---") does not count, so an answer that does scores 0, always:
to say nothing is never right. Exact match is at most token F1, and at most containment, for every answer.

A reward is a function of an `Outcome`: what the policy itself wrote, and the accepted answers. No prompt, passage or
notice is in it, so nothing that a policy was shown can be scored. `make` gives one by name: "f1", "em+0.2*format".
"""

from __future__ import annotations

import inspect
import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import SupportsFloat, SupportsIndex


@dataclass(frozen=True)
class Outcome:
    """What a reward judges: how an episode ended, in the policy's own words."""

    answer: str | None
    """The answer; None where the episode ended without one."""
    golds: tuple[str, ...]
    """The accepted answers."""
    turns: tuple[str, ...] = ()
    """What the policy wrote in each of its turns, in order."""


Normalizer = Callable[[str], str]
Reward = Callable[[Outcome], float]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSING_TAG = re.compile("</(?:search|answer)>")
# HotpotQA's closed answers, of which a part is worth nothing.
_CLOSED = ("yes", "no", "noanswer")
# Text without a tag of the dialogue: those of passages belong to the environment alone.
_PLAIN = "(?:(?!</?(?:think|search|answer|information|documents)>).)*"
_THOUGHTS = f"(?:{_PLAIN}<think>{_PLAIN}</think>)*{_PLAIN}"
_WELL_FORMED = re.compile(rf"{_THOUGHTS}<(search|answer)>({_PLAIN})</\1>\s*", re.DOTALL)
# Between two terms; the sign of an exponent ("1e-3*em") is none of these.
_SIGN = re.compile(r"(?<![0-9.][eE])([+-])")


def normalize(text: str) -> str:
    """Fold a text as the official SQuAD script does.

    Lower case, ASCII punctuation removed, the articles a, an, the removed, white space folded. So "3.14" equals "314",
    and "1914–1918" with an en dash does not equal "1914-1918"; `normalize_unicode` differs there.

    Source: evaluate-v1.1.py of SQuAD, `normalize_answer`, which Search-R1 and FlashRAG use as well.
    """
    return _fold(text.lower().translate(_ASCII_PUNCTUATION))


def normalize_unicode(text: str) -> str:
    """Fold a text as `normalize` does, with all of Unicode in view.

    Composed and decomposed characters are equal, case is folded fully ("ß" is "ss"), and punctuation of every script
    is removed. Between two digits a point stays, and a dash of any kind becomes "-": "3.14" is not "314", and
    "1914–1918" is "1914-1918".
    """
    text = unicodedata.normalize("NFC", text.casefold())
    kept = []
    for before, character, after in zip(" " + text, text, text[1:] + " ", strict=False):
        category = unicodedata.category(character)
        if not category.startswith("P") and character not in string.punctuation:
            kept.append(character)
        elif before.isdecimal() and after.isdecimal() and (category == "Pd" or character == "."):
            kept.append("." if character == "." else "-")
    return _fold("".join(kept))


def exact_match(prediction: str | None, golds: Sequence[str] | str, *, normalizer: Normalizer = normalize) -> float:
    """1.0 if the answer equals an accepted one after normalisation, else 0.0.

    Args:
        prediction: the answer; None where there is none.
        golds: the accepted answers; a string is a single one.
        normalizer: `normalize`, `normalize_unicode`, or any function of a text.
    """
    return _best(lambda answer, gold: float(answer == gold), prediction, golds, normalizer)


def token_f1(prediction: str | None, golds: Sequence[str] | str, *, normalizer: Normalizer = normalize) -> float:
    """SQuAD's F1 between the words of the answer and of an accepted one, in [0, 1]. Arguments as for `exact_match`."""
    return _best(_overlap, prediction, golds, normalizer)


def hotpotqa_f1(prediction: str | None, golds: Sequence[str] | str, *, normalizer: Normalizer = normalize) -> float:
    """`token_f1`, but yes, no and noanswer, as answer or as accepted one, are right as a whole or not at all.

    Source: hotpot_evaluate_v1.py of HotpotQA, `f1_score`.
    """

    def score(answer: str, gold: str) -> float:
        return 0.0 if answer != gold and (answer in _CLOSED or gold in _CLOSED) else _overlap(answer, gold)

    return _best(score, prediction, golds, normalizer)


def contains(prediction: str | None, golds: Sequence[str] | str, *, normalizer: Normalizer = normalize) -> float:
    """1.0 if an accepted answer is a part of the answer, both normalised, else 0.0. Arguments as for `exact_match`.

    A part of the characters, not of the words: "comparison" contains "Paris". So the recorded scores of others count
    it (FlashRAG's sub_em), and a reward made of it can be had by long answers.
    """
    return _best(lambda answer, gold: float(gold in answer), prediction, golds, normalizer)


def extract_answer(text: str) -> str | None:
    """The final answer in what a policy wrote, read exactly as an episode reads it.

    The first `<answer>…</answer>` that can be read is the answer, for it ends the episode; what follows is not read.
    A closing tag ends a turn. It closes the first opening tag of its kind in that turn, and cannot be read where there
    is none or where another opening tag stands in between, since it is not clear then what was meant:
    `<answer>a<answer>b</answer>` and `<answer>a<search>b</answer>` answer nothing. An answer inside an unclosed
    `<think>` counts.

    Args:
        text: the policy's own text alone. A prompt or retrieved passages may hold tags that are not its own:
            `search_gym.score.own_text` leaves passages out.

    Returns:
        The text between the tags, stripped, perhaps empty; None where there is no answer.
    """
    start = 0
    for close in _CLOSING_TAG.finditer(text):
        turn, start = text[start : close.start()], close.end()
        _, opened, body = turn.partition("<answer>")
        if close.group() == "</answer>" and opened and "<answer>" not in body and "<search>" not in body:
            return body.strip()
    return None


def well_formed(turns: Sequence[str]) -> float:
    """1.0 if every turn is written as it should be and the last one answers, else 0.0.

    A turn is one action, `<search>…</search>` or in the last turn `<answer>…</answer>`, perhaps after thoughts,
    `<think>…</think>`, and other text. Nothing but white space follows the action; the query or answer is not empty;
    and no other tag occurs, also none of passages (`<information>`, `<documents>`), which a policy may not make up. So
    a turn that cannot be read is ill-formed, and beyond that: a thought that is not closed before the action, an empty
    answer. A search too many may be well-formed: it breaks a rule of the game.

    All or nothing, as in Search-R1's qa_em_format.py, the code of arXiv 2505.15117: with its structure_format_score of
    0.2 and no bonus for retrieval, its reward is "0.8*em+0.2*format". A share of good turns could be raised by needless
    searches. Differs from there in: each action needed a thought, and no text could stand outside the tags, though
    prompts may ask for no thoughts and an episode reads such turns well; and a query or an answer could be empty. SkyRL
    and verl reward no structure: their format_score goes to any answer that is wrong.

    Args:
        turns: what the policy wrote, turn by turn.
    """
    matches = map(_WELL_FORMED.fullmatch, turns)
    actions = [match[1] if match and match[2].strip() else None for match in matches]
    return float(actions == ["search"] * (len(actions) - 1) + ["answer"])


def _of_answer(score: Callable[..., float], normalizer: Normalizer = normalize) -> Reward:
    return lambda outcome: score(outcome.answer, outcome.golds, normalizer=normalizer)


REWARDS: dict[str, Reward] = {
    "em": _of_answer(exact_match),
    "em:unicode": _of_answer(exact_match, normalize_unicode),
    "f1": _of_answer(token_f1),
    "f1:unicode": _of_answer(token_f1, normalize_unicode),
    "f1:hotpotqa": _of_answer(hotpotqa_f1),
    "f1:hotpotqa:unicode": _of_answer(hotpotqa_f1, normalize_unicode),
    "cover": _of_answer(contains),
    "cover:unicode": _of_answer(contains, normalize_unicode),
    "format": lambda outcome: well_formed(outcome.turns),
}


def make(reward: str | Reward) -> Reward:
    """A reward from its description, or the function given.

    Args:
        reward: a name in `REWARDS`; a sum of them, each with a weight before it or without one, such as "f1",
            "em+0.2*format", "0.5*em + 0.5*f1:unicode - 1e-2*cover"; or a function of an `Outcome`.

    Raises:
        ValueError: if the description cannot be read, which says where and why; or the function takes something else.
    """
    if not isinstance(reward, str):
        _check_function(reward)
        return reward
    terms = [(weight, REWARDS[name]) for weight, name in _terms(reward)]
    if not math.isfinite(sum(abs(weight) for weight, _ in terms)):
        raise ValueError(f"cannot read reward {reward!r}: its weights are too large to be added")
    if [weight for weight, _ in terms] == [1.0]:
        return terms[0][1]
    return lambda outcome: sum(weight * score(outcome) for weight, score in terms)


def evaluate(reward: Reward, outcome: Outcome, question_id: str) -> float:
    """The reward of an outcome, as a float.

    Raises:
        ValueError: if the reward is no finite number, which must not reach training; names the reward and the question.
    """
    value = reward(outcome)
    number = None
    # float() would read a string as well. What is a float already comes first, for the protocols take long to look at.
    if isinstance(value, float | SupportsFloat | SupportsIndex):
        try:
            number = float(value)
        except Exception:  # an array of several numbers says so in the way of its library
            number = None
    if number is None or not math.isfinite(number):
        raise ValueError(
            f"reward {_name(reward)} gave {value!r} for question {question_id!r}: it must give a finite number"
        )
    return number


def _terms(spec: str) -> Iterator[tuple[float, str]]:
    """The weights and names of `[number*]name{+[number*]name}`, with + or -, the first of which may be left out."""
    parts = _SIGN.split(spec)
    sign, at = 1.0, 0
    for position, part in enumerate(parts):
        if part in ("+", "-"):
            sign = float(part + "1")
        elif part.strip() or position > 0 or len(parts) == 1:
            weight, starred, name = part.rpartition("*")
            try:
                term = sign * _weight(weight.strip() if starred else "1"), _known(name.strip())
            except ValueError as error:
                place = at + len(part) - len(part.lstrip()) + 1
                raise ValueError(f"cannot read reward {spec!r} at character {place}: {error}") from None
            yield term
        at += len(part)


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number; a weight stands before its name, as in 0.2*em") from None
    if not math.isfinite(weight):
        raise ValueError(f"the weight {text} is not finite")
    return weight


def _known(name: str) -> str:
    if name not in REWARDS:
        what = f"there is no reward {name!r}" if name else "a name is missing"
        raise ValueError(f"{what}; there are: {', '.join(REWARDS)}; or give a function")
    return name


def _check_function(reward: object) -> None:
    """Fail now rather than at the end of the first episode."""
    if not callable(reward):
        raise ValueError(f"a reward is a name, a sum of names or a function, not {reward!r}")
    try:
        signature = inspect.signature(reward)
    except ValueError:  # a builtin that does not tell
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise ValueError(f"reward {_name(reward)} must take one argument, an Outcome: {error}") from error


def _name(reward: object) -> str:
    return getattr(reward, "__qualname__", None) or repr(reward)


def _fold(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text).split())


def _overlap(answer: str, gold: str) -> float:
    """F1 of two bags of words, both normalised."""
    answer_words, gold_words = answer.split(), gold.split()
    common = sum((Counter(answer_words) & Counter(gold_words)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(answer_words), common / len(gold_words)
    return 2 * precision * recall / (precision + recall)


def _best(
    score: Callable[[str, str], float], prediction: str | None, golds: Sequence[str] | str, normalizer: Normalizer
) -> float:
    """The best score over the accepted answers, both sides normalised; those that are empty then do not count."""
    answer = normalizer(prediction or "")
    folded = map(normalizer, [golds] if isinstance(golds, str) else golds)
    return max((score(answer, gold) for gold in folded if gold), default=0.0)
