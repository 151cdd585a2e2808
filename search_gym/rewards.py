"""Scores of an answer against the accepted ones: pure functions of strings.

All of them lie in [0, 1] and take the best over the accepted answers. An accepted answer that normalises to nothing
("---") does not count, so an answer that does scores 0, always: to say nothing is never right. Exact match is at most
token F1, and at most containment, for every answer.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

Normalizer = Callable[[str], str]
Reward = Callable[[str | None, Sequence[str]], float]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSING_TAG = re.compile("</(?:search|answer)>")
# HotpotQA's closed answers, of which a part is worth nothing.
_CLOSED = ("yes", "no", "noanswer")


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


REWARDS: dict[str, Reward] = {"em": exact_match, "f1": token_f1, "cover": contains}


def make(reward: str | Reward) -> Reward:
    """A reward by name ("em", "f1", "cover"), or the function given.

    Returns:
        A function of the answer (None: the episode ended without one) and the accepted answers.

    Raises:
        ValueError: if no reward has that name; the message lists those there are.
    """
    if not isinstance(reward, str):
        return reward
    if reward not in REWARDS:
        raise ValueError(f"unknown reward {reward!r}; there are: {', '.join(REWARDS)}; or give a function")
    return REWARDS[reward]


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
