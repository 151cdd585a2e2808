"""Scores of an answer, and reading it: laws first, then the cases."""

from __future__ import annotations

import re
import string
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_gym import rewards
from search_gym.episode import Episode
from search_gym.questions import Question
from search_gym.rewards import contains, exact_match, extract_answer, hotpotqa_f1, normalize_unicode, token_f1
from search_gym.rules import Rules, Search
from search_gym.tokenizers import embedded

# Few words, so that answers often share some; and any text at all.
WORDS = st.lists(
    st.sampled_from(["the", "A", "an", "Paris", "paris,", "France", "yes", "No", "noanswer", "--", ""])
).map(" ".join)
TEXTS = WORDS | st.text()
TAGS = ["<search>", "</search>", "<answer>", "</answer>", "<think>", "</think>"]
WRITINGS = st.lists(st.sampled_from([*TAGS, *TAGS[2:4], "Oslo", " ", "\n", "<", "</"]), max_size=14).map("".join)


def official_normalize(s: str) -> str:
    """`normalize_answer` of SQuAD's evaluate-v1.1.py, step by step as it is written there."""

    def remove_articles(text: str) -> str:
        return re.sub(r"\b(a|an|the)\b", " ", text)

    def white_space_fix(text: str) -> str:
        return " ".join(text.split())

    def remove_punc(text: str) -> str:
        exclude = set(string.punctuation)
        return "".join(ch for ch in text if ch not in exclude)

    return white_space_fix(remove_articles(remove_punc(s.lower())))


def shared_words(answer: str, gold: str) -> float:
    """SQuAD's F1 as Dice's coefficient of two bags of words: twice the words that can be paired, over all words."""
    words, left = official_normalize(answer).split(), official_normalize(gold).split()
    size, pairs = len(words) + len(left), 0
    for word in words:
        if word in left:
            left.remove(word)
            pairs += 1
    return 2 * pairs / size if pairs else 0


def shared_words_unless_closed(answer: str, gold: str) -> float:
    """The same by HotpotQA's rule: yes, no and noanswer equal themselves, and share nothing with anything else."""
    sides = {official_normalize(answer), official_normalize(gold)}
    return 0 if len(sides) == 2 and sides & {"yes", "no", "noanswer"} else shared_words(answer, gold)


@given(TEXTS)
def test_the_normaliser_is_squads(text: str) -> None:
    assert rewards.normalize(text) == official_normalize(text)


@given(TEXTS, st.lists(TEXTS, max_size=4))
def test_the_scores_are_as_defined(answer: str, golds: list[str]) -> None:  # S3, S4, S5
    for score, reference in ((token_f1, shared_words), (hotpotqa_f1, shared_words_unless_closed)):
        assert score(answer, golds) == pytest.approx(max((reference(answer, gold) for gold in golds), default=0))
    said = [official_normalize(gold) for gold in golds if official_normalize(gold)]
    assert exact_match(answer, golds) == float(official_normalize(answer) in said)


@given(TEXTS)
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert rewards.normalize(rewards.normalize(text)) == rewards.normalize(text)


@given(TEXTS)
def test_the_unicode_normaliser_takes_composed_and_decomposed_text_alike(text: str) -> None:
    composed, decomposed = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
    assert normalize_unicode(composed) == normalize_unicode(decomposed)


@given(TEXTS, st.lists(TEXTS, max_size=4), st.sampled_from([rewards.normalize, normalize_unicode]))
def test_exact_match_is_the_least_score(answer: str, golds: list[str], normalizer: rewards.Normalizer) -> None:
    em, f1, cover = (score(answer, golds, normalizer=normalizer) for score in (exact_match, token_f1, contains))
    assert em in (0.0, 1.0)
    assert cover in (0.0, 1.0)
    assert em <= f1 <= 1
    assert em <= cover
    assert em <= hotpotqa_f1(answer, golds, normalizer=normalizer) <= f1


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=4))
def test_one_more_gold_never_lowers_a_score(answer: str, golds: list[str]) -> None:
    for score in (exact_match, token_f1, hotpotqa_f1, contains):
        assert score(answer, golds[:-1]) <= score(answer, golds)


@given(TEXTS)
def test_an_answer_scores_1_against_itself_unless_it_says_nothing(text: str) -> None:
    for score in (exact_match, token_f1, hotpotqa_f1, contains):
        assert score(text, [text]) == float(rewards.normalize(text) != "")


@given(st.lists(st.sampled_from(["", " ", "\n", "the", "A", "an ", "...", "--", "?! "]), max_size=5), st.lists(TEXTS))
def test_to_say_nothing_is_never_right(nothing: list[str], golds: list[str]) -> None:  # S2
    for score in (exact_match, token_f1, hotpotqa_f1, contains):
        for normalizer in (rewards.normalize, normalize_unicode):
            assert score(" ".join(nothing), [*golds, *nothing], normalizer=normalizer) == 0


@given(WRITINGS, WRITINGS)
def test_what_follows_an_answer_is_not_read(text: str, more: str) -> None:  # S6
    answer = extract_answer(text)
    if answer is not None:
        assert extract_answer(text + more) == answer


@given(WRITINGS)
def test_an_answer_is_read_offline_as_an_episode_reads_it(text: str) -> None:
    rules = Rules(prompt="brief", max_searches=20, max_turns=40, max_context_tokens=10_000)
    episode = Episode(Question("q", "Where?", ("Oslo",)), embedded(), rules)
    for token in embedded().encode(text):
        if any(isinstance(event, Search) for event in episode.feed([token])):
            episode.observe([])
        if episode.done:
            break
    assert extract_answer(text) == episode.answer


@pytest.mark.parametrize("nothing", [None, "", " \n ", "the", "...", "a -- the"])
def test_an_answer_that_says_nothing_scores_0(nothing: str | None) -> None:  # S2
    for score in (exact_match, token_f1, hotpotqa_f1, contains):
        assert score(nothing, ["", "Paris"]) == 0
        assert score(nothing, ["the", "---", ""]) == 0


def test_a_gold_that_says_nothing_is_matched_by_no_answer() -> None:
    for score in (exact_match, token_f1, hotpotqa_f1, contains):
        assert score("Paris", ["", "the", "---"]) == 0


def test_a_partly_right_answer() -> None:  # S3
    answer, golds = "the capital is Paris, France", ["Paris"]
    assert (exact_match(answer, golds), token_f1(answer, golds), contains(answer, golds)) == (0, 0.4, 1)
    assert exact_match("London or Paris", golds) == 0  # S6


@pytest.mark.parametrize(
    ("answer", "gold", "score"),
    [("yes it was", "yes", 0), ("no", "no one", 0), ("Yes.", "yes", 1), ("noanswer", "noanswer given", 0)],
)
def test_hotpotqa_gives_nothing_for_a_part_of_yes_or_no(answer: str, gold: str, score: float) -> None:  # S4
    assert hotpotqa_f1(answer, [gold]) == score
    assert token_f1(answer, [gold]) > 0
    assert hotpotqa_f1("Paris, France", ["Paris"]) == token_f1("Paris, France", ["Paris"])


COMPOSED, DECOMPOSED = "Beyonc\u00e9", "Beyonce\u0301"


@pytest.mark.parametrize(
    ("answer", "gold", "squad", "in_unicode"),
    [
        ("3.14", "314", 1, 0),
        ("1914–1918", "1914-1918", 0, 1),
        (COMPOSED, DECOMPOSED, 0, 1),
        ("“Paris”", "paris", 0, 1),
        ("U.S.", "US", 1, 1),
        ("Straße", "STRASSE", 0, 1),
        ("1,000", "1000", 1, 1),
        ("5-3", "53", 1, 0),
        ("well-known", "wellknown", 1, 1),
    ],
)
def test_the_two_normalisers(answer: str, gold: str, squad: float, in_unicode: float) -> None:  # S5
    assert exact_match(answer, [gold]) == squad
    assert exact_match(answer, [gold], normalizer=normalize_unicode) == in_unicode


def test_containment_is_of_characters() -> None:
    assert contains("a comparison", ["Paris"]) == 1
    assert contains("Par is", ["Paris"]) == 0


def test_a_single_gold_is_not_taken_for_its_letters() -> None:
    assert exact_match("P", "Paris") == 0
    assert exact_match("Paris", "Paris") == 1


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>Paris</answer>", "Paris"),
        ("so it is <answer> \n Paris\n</answer> and more", "Paris"),
        ("<answer></answer>", ""),
        ("<answer> \n </answer>", ""),
        ("Beijing", None),
        ("<answer>Paris", None),
        ("Paris</answer>", None),
        ("<answer>London</answer><answer>Paris</answer>", "London"),
        ("<answer>a<answer>b</answer>", None),
        ("<answer>a<answer>b</answer> <answer>c</answer>", "c"),
        ("<answer>a<search>b</search>c</answer>", None),
        ("<answer>a<search>b</answer>", None),
        ("<search>a<answer>b</answer>", "b"),
        ("</search> x <search>", None),
        ("<think>so <answer>P</answer>", "P"),
        ("<ANSWER>Paris</ANSWER>", None),
    ],
)
def test_reading_an_answer(text: str, answer: str | None) -> None:  # S2, S6, P2
    assert extract_answer(text) == answer
