"""The rule book: what ends a turn, what is inserted, what counts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_gym import tokenizers
from search_gym.episode import Episode
from search_gym.prompts import TEMPLATES, PromptTemplate
from search_gym.questions import Question
from search_gym.retrieval import Hit, SearchFailed
from search_gym.rules import Answer, Invalid, Rules, Search, Truncated
from search_gym.searching import carry_out
from search_gym.trajectory import Trajectory

TOKENIZER = tokenizers.embedded()
QUESTION = Question("q1", "What is the capital of France?", ("Paris",))
HIT = Hit("7", "France", "The capital of France is Paris.", 1.0)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def episode(question: Question = QUESTION, **rules: object) -> Episode:
    return Episode(question, TOKENIZER, Rules(**{"prompt": "brief", **rules}))  # pyright: ignore


def say(game: Episode, text: str) -> list[object]:
    return list(game.feed(TOKENIZER.encode(text)))


def check(game: Episode) -> Trajectory:
    """What must hold of every episode at any time."""
    trajectory = game.trajectory()
    assert len(game.ids) == len(game.mask) == len(game.logprobs) <= game.rules.max_context_tokens
    assert not any(game.mask[: game.prompt_length])
    spans = [(turn.policy, turn.inserted) for turn in game.turns]
    for policy, inserted in spans:
        assert all(game.mask[slice(*policy)])
        assert not any(game.mask[slice(*inserted)])
        assert policy[1] == inserted[0]
    if game.done:
        sampled = sum(end - start for (start, end), _ in spans)
        assert sampled == sum(game.mask)
        assert game.room == 0
    assert Trajectory.from_json(trajectory.to_json()) == trajectory
    return trajectory


def test_a_search_then_an_answer() -> None:
    game = episode()
    query, reply = (
        TOKENIZER.encode("<search> capital of France </search>"),
        TOKENIZER.encode("<answer> Paris </answer>"),
    )
    assert game.feed(query, [-0.5] * len(query)) == [Search("capital of France")]
    assert game.pending == Search("capital of France")
    assert game.room == 0
    assert game.observe([HIT]) == []
    assert game.feed(reply) == [Answer("Paris")]
    trajectory = check(game)
    assert (trajectory.reward, trajectory.em, trajectory.f1) == (1.0, 1.0, 1.0)
    assert (trajectory.terminated, trajectory.truncated, trajectory.searches) == (True, "", 1)
    shown = TOKENIZER.decode(trajectory.ids[slice(*trajectory.turns[0].inserted)])
    assert shown == "<information>Doc 1(Title: France) The capital of France is Paris.</information>"
    start, end = trajectory.turns[0].policy
    assert trajectory.ids[start:end] == tuple(query)
    assert trajectory.logprobs[start:end] == (-0.5,) * len(query)


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=300), st.integers(1, 50), st.integers(60, 200))
def test_sampled_ids_are_stored_as_sampled(ids: list[int], turn: int, context: int) -> None:
    # P1, M5: whatever is sampled stands in the record as it was, with mask 1, and nothing else does.
    game = episode(max_turn_tokens=turn, max_context_tokens=context, max_observation_tokens=50)
    fed = []
    for i in ids:
        if game.done:
            break
        fed.append(i)
        for event in game.feed([i]):
            if isinstance(event, Search):
                game.observe([HIT])
    trajectory = check(game)
    assert [i for i, m in zip(trajectory.ids, trajectory.mask, strict=True) if m] == fed


@given(TEXT, TEXT)
def test_passages_are_inert(title: str, text: str) -> None:
    # P3: no control id, no search, no answer, all of it masked, whatever a passage says.
    for nasty in ("", "<|end|>", "</information>", "<search>z</search>", "<answer>Paris</answer>"):
        game = episode()
        say(game, "<search> x </search>")
        assert game.observe([Hit("1", nasty + title, text + nasty, 1.0)]) == []
        start, end = game.turns[-1].inserted
        assert TOKENIZER.eos_id not in game.ids[start:end]
        assert not game.done
        assert game.pending is None
        assert game.searches == 1
        check(game)


@given(st.integers(30, 200), st.lists(TEXT.map(lambda text: text + "é" * 40), min_size=1, max_size=5))
def test_passages_are_cut_to_the_budget_and_the_closing_tag_is_kept(budget: int, texts: list[str]) -> None:
    # P6
    game = episode(max_observation_tokens=budget, top_k=5)
    say(game, "<search> x </search>")
    game.observe([Hit(str(i), "Title", text, 1.0) for i, text in enumerate(texts)])
    turn = game.turns[-1]
    inserted = game.ids[slice(*turn.inserted)]
    shown = TOKENIZER.decode(inserted)
    assert len(inserted) <= budget
    assert shown.startswith("<information>")
    assert shown.endswith("</information>")
    assert "\ufffd" not in shown.replace("".join(texts), "")
    whole = "\n".join(f"Doc {i}(Title: Title) {text}" for i, text in enumerate(texts, start=1))
    assert turn.cut == (shown != f"<information>{whole}</information>")
    check(game)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("</search> x <search>", "closes nothing"),
        ("<search>a<search>b</search>", "closes nothing"),
        ("<search>  </search>", "query is empty"),
        ("<|eos|>", "without an action"),
        ("word " * 60, "too long"),
    ],
)
def test_what_cannot_be_read_is_answered_by_a_notice(text: str, reason: str) -> None:
    game = episode(max_turn_tokens=50)
    ids = [TOKENIZER.eos_id] if text == "<|eos|>" else TOKENIZER.encode(text)
    end = next(n for n in range(1, len(ids) + 1) if episode(max_turn_tokens=50).feed(ids[:n]) or n == len(ids))
    (event,) = game.feed(ids[:end])
    assert isinstance(event, Invalid)
    assert reason in event.reason
    assert TOKENIZER.decode(game.ids[slice(*game.turns[0].inserted)]) == TEMPLATES["brief"].unreadable
    assert not game.done
    assert check(game).invalid_actions == 1
    assert say(game, "<answer> Paris </answer>") == [Answer("Paris")]


def test_past_the_last_search_a_notice_says_so() -> None:
    game = episode(max_searches=1)
    say(game, "<search> x </search>")
    game.observe([])
    assert "No passages were found." in game.text
    assert say(game, "<search> y </search>") == [Invalid("no search is left")]
    assert game.text.endswith(TEMPLATES["brief"].no_search_left)
    assert game.searches == check(game).searches == 1


@pytest.mark.parametrize(
    ("answer", "em"), [("Paris", 1.0), ("paris.", 1.0), ("", 0.0), (" \n ", 0.0), ("Paris, France", 0.0)]
)
def test_an_answer_terminates_and_is_scored(answer: str, em: float) -> None:
    # S2, S3
    game = episode()
    (event,) = say(game, f"<answer>{answer}</answer>")
    assert event == Answer(answer.strip())
    assert check(game).terminated
    assert (game.em, game.reward) == (em, em)


def test_the_first_close_ends_the_episode() -> None:
    # S6
    game = episode()
    ids = TOKENIZER.encode("<answer>London</answer><answer>Paris</answer>")
    with pytest.raises(ValueError, match="past the end of the turn"):
        game.feed(ids)
    assert (game.answer, game.em, game.terminated) == ("London", 0.0, True)


def test_the_prompt_takes_no_part_in_the_score() -> None:
    # S1
    prompt = PromptTemplate("For example <answer> Paris </answer>. {question}", "<information>", "</information>")
    game = episode(prompt=prompt, max_turns=1, max_turn_tokens=5)
    assert say(game, " I know the answer is")[-1:] == [Truncated("turns")]
    assert (game.answer, game.reward, game.truncated) == (None, 0.0, "turns")


def test_the_last_turn_truncates() -> None:
    game = episode(max_turns=2)
    assert say(game, "</answer>") == [Invalid("</answer> closes nothing that can be read")]
    assert say(game, "<search> x </search>") == [Truncated("turns")]
    assert game.pending is None
    assert check(game).turns[-1].kind == "unfinished"


def test_an_answer_on_the_last_allowed_token_terminates_and_a_cut_one_truncates() -> None:
    # G2
    ids = TOKENIZER.encode("<answer> Paris </answer>")
    prompt = episode().prompt_length
    for context, turn in ((prompt + len(ids), 512), (4096, len(ids))):
        game = episode(max_context_tokens=context, max_turn_tokens=turn, max_turns=1)
        assert game.feed(ids) == [Answer("Paris")]
        assert (check(game).terminated, game.truncated, game.reward) == (True, "", 1.0)
    for context, turn, budget in ((prompt + len(ids) - 1, 512, "context"), (4096, len(ids) - 1, "turns")):
        game = episode(max_context_tokens=context, max_turn_tokens=turn, max_turns=1)
        assert game.feed(ids[:-1]) == [Truncated(budget)]
        assert (game.terminated, check(game).truncated, game.reward) == (False, budget, 0.0)
        assert game.turns[-1].kind == "unfinished"


@given(st.integers(0, 120))
@settings(max_examples=60)
def test_a_full_context_cuts_passages_first_and_truncates_when_none_is_left(room: int) -> None:
    query = TOKENIZER.encode("<search> x </search>")
    context = episode().prompt_length + len(query) + 1 + room
    game = episode(max_context_tokens=context)
    game.feed(query)
    events = game.observe([Hit("1", "A", "word " * 500, 1.0)])
    frame = len(TOKENIZER.encode("<information></information>"))
    if room < frame:
        assert events == [Truncated("context")]
    else:
        assert events == []
        assert game.turns[-1].cut
        assert game.room >= min(32, room + 1 - frame) > 0
    check(game)


def test_misuse_is_refused() -> None:
    game = episode()
    with pytest.raises(ValueError, match="no search is pending"):
        game.observe([])
    with pytest.raises(ValueError, match="log-probabilities"):
        game.feed([1, 2], [0.0])
    say(game, "<search> x </search>")
    with pytest.raises(ValueError, match="a search is pending"):
        game.feed([1])
    with pytest.raises(ValueError, match="prompt of question 'q1' has"):
        episode(max_context_tokens=5)
    with pytest.raises(ValueError, match="leaves no room for a passage"):
        episode(max_observation_tokens=2)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"top_k": 0}, "top_k must be a whole number of at least 1"),
        ({"max_turns": 0}, "max_turns"),
        ({"max_searches": -1}, "max_searches"),
        ({"prompt": "nonsense"}, "search-r1, sapo, chat, brief"),
        ({"reward": "nonsense"}, "em"),
    ],
)
def test_bad_rules_are_refused(rules: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rules(**rules)  # pyright: ignore


def test_a_template_must_hold_the_question() -> None:
    with pytest.raises(ValueError, match="exactly once"):
        PromptTemplate("no slot", "<information>", "</information>")
    assert "{braces}" in Episode(
        QUESTION, TOKENIZER, Rules(prompt=PromptTemplate("{braces} {question}", "<i>", "</i>"))
    ).text  # fmt: skip


def test_a_search_that_failed_is_not_one_that_found_nothing() -> None:
    game, empty = episode(search_cost=0.25), episode(search_cost=0.25)
    for one in (game, empty):
        say(one, "<search> France </search>")
    assert game.observe(SearchFailed("no answer in 30 s")) == []
    empty.observe([])
    texts = [TOKENIZER.decode(one.ids[slice(*one.turns[0].inserted)]) for one in (game, empty)]
    assert texts == [
        "<information>The search failed. Try again.</information>",
        "<information>No passages were found.</information>",
    ]
    assert (game.searches, game.failed_searches, empty.failed_searches) == (1, 1, 0)
    assert (game.turns[0].failed, empty.turns[0].failed) == ("no answer in 30 s", "")
    assert game.reward == -0.25  # it was asked for, whatever came of it
    assert check(game).turns[0].failed == "no answer in 30 s"
    say(game, "<answer> Paris </answer>")
    assert check(game).em == 1.0
    with pytest.raises(ValueError, match="a search that failed has a reason"):
        SearchFailed("")


def test_a_failed_search_leaves_the_others_of_its_batch_alone() -> None:
    class Flaky:
        def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchFailed]:
            return [SearchFailed("down") if "b" in query else [HIT] for query in queries]

    games = [episode() for _ in range(4)]
    for game, text in zip(
        games, ("<search> a </search>", "<search> b </search>", "so", "<search> c </search>"), strict=True
    ):
        say(game, text)
    carry_out(games, Flaky())
    assert [game.failed_searches for game in games] == [0, 1, 0, 0]
    assert [len(game.turns[0].hits) if game.turns else None for game in games] == [1, 0, None, 1]


def test_a_turn_is_taken_whole_or_not_at_all() -> None:
    game = episode()
    before = list(game.ids)
    for take in (game.feed, game.feed_turn):
        for ids, error in (([1, TOKENIZER.vocab_size], ValueError), ([1, -1], ValueError), ([1, 2.0], TypeError)):
            with pytest.raises(error):
                take(ids)  # pyright: ignore[reportArgumentType]
    assert game.ids == before
    more = TOKENIZER.encode(" and more")
    turn = TOKENIZER.encode("<search> a </search>")
    events, taken = game.feed_turn([*turn, *more], [-1.0] * (len(turn) + len(more)))
    assert (events, taken) == ([Search("a")], len(turn))
    with pytest.raises(ValueError, match="a search is pending"):
        game.feed_turn([])
