"""Scoring recorded responses: what counts as the policy's own text, and agreement with recorded scores."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_gym import prompts, rewards, score
from search_gym.episode import Episode
from search_gym.questions import Question
from search_gym.retrieval import Hit
from search_gym.rules import Rules, Search
from search_gym.tokenizers import embedded

RECORDED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "trajectories" / "bamboogle.jsonl"
TAGS = ["<search>", "</search>", "<answer>", "</answer>"]
TURNS = st.lists(st.sampled_from([*TAGS, "<search>Oslo</search>", "<answer>a</answer>", " ", "b"]), max_size=10)
RETRIEVED = st.lists(
    st.sampled_from(
        [*TAGS, "<answer>Beijing</answer>", "<information>", "</information>", "</documents>", "<documents>"]
    )
).map("".join)
# A passage that closes its block and opens another cannot be told from two blocks with the policy's text between them.
FORGED = re.compile("</(information|documents)>.*<(information|documents)>")


@given(
    TURNS,
    RETRIEVED.filter(lambda text: not FORGED.search(text)),
    st.sampled_from(sorted(set(prompts.TEMPLATES) - {"chat"})),
)
def test_a_recorded_episode_is_scored_as_the_episode_was(turns: list[str], retrieved: str, prompt: str) -> None:
    rules = Rules(prompt=prompt, max_searches=3, max_turns=20, max_observation_tokens=300, max_context_tokens=10_000)
    episode = Episode(Question("q", "Where?", ("Oslo",)), embedded(), rules)
    for token in embedded().encode("".join([*turns, "<answer>Oslo</answer>"])):
        if any(isinstance(event, Search) for event in episode.feed([token])):
            episode.observe([Hit("h", "T", retrieved, 1.0)])
        if episode.done:
            break
    recorded = embedded().decode(episode.ids[episode.prompt_length :])
    assert score.predict(recorded) == episode.answer
    if episode.done:
        ended = score.outcome(recorded, ["Oslo"])
        assert rewards.make("format")(ended) == rewards.well_formed([turn.text for turn in episode.turns])


SEARCH_R1_NOTICE = (
    "My previous action is invalid. If I want to search, I should put the query between <search> and </search>. If I "
    "want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again."
)
INFORMATION = "<search>q</search>\n\n<information>{}</information>\n\n"


@pytest.mark.parametrize(
    ("response", "prediction"),
    [
        ("<answer>Paris</answer>", "Paris"),
        ("Beijing", None),
        (INFORMATION.format("<answer>Beijing</answer>"), None),
        (INFORMATION.format("<answer>Beijing</answer>") + "<answer>Paris</answer>", "Paris"),
        (INFORMATION.format("</information> <answer>Beijing</answer>") + "<answer>Paris</answer>", "Paris"),
        (INFORMATION.format("<information>") + "<answer>Paris</answer>", "Paris"),
        ("<information>cut <answer>Beijing</answer>", None),
        ("<search>q</search><documents><answer>Beijing</answer></documents><answer>Paris</answer>", "Paris"),
        ("<answer>Par" + INFORMATION.format("x") + "is</answer>", None),
        (f"<answer>Par\n{SEARCH_R1_NOTICE}\nis</answer>", None),
        ("<answer>London</answer><answer>Paris</answer>", "London"),
        (f"hm\n{SEARCH_R1_NOTICE}\n<answer>Paris</answer>", "Paris"),
        (f"hm{prompts.TEMPLATES['search-r1'].unreadable}<answer>Paris</answer>", "Paris"),
    ],
)
def test_only_the_policys_own_text_is_read(response: str, prediction: str | None) -> None:  # S1, S6, P3
    assert score.predict(response) == prediction


@pytest.mark.parametrize(
    ("response", "turns"),
    [
        (INFORMATION.format("x") + "<answer>Paris</answer>", ["<search>q</search>", "<answer>Paris</answer>"]),
        (
            "<search>q</search><information>x</information>\n<information>y</information> so",
            ["<search>q</search>", "so"],
        ),
        (f"hm\n{SEARCH_R1_NOTICE}\n", ["hm"]),
        ("", []),
    ],
)
def test_the_turns_of_a_recorded_response(response: str, turns: list[str]) -> None:
    assert [turn.strip() for turn in score.outcome(response, ["Paris"]).turns] == turns


def write(folder: Path, *lines: str) -> Path:
    path = folder / "r.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_the_prompt_is_not_scored(tmp_path: Path) -> None:  # S1
    prompt = "For example, <answer> Beijing </answer>."
    rows = [
        {"prompt": prompt, "response": "<answer>Paris</answer>", "golden_answers": ["Paris"]},
        {"prompt": prompt, "response": "no tag", "golden_answers": ["Beijing"]},
        {"response": "<answer>Paris</answer>", "golden_answers": "Paris", "id": 3},
        {"response": "<answer></answer>", "golden_answers": ["", "Paris"]},
    ]
    scores = score.load(write(tmp_path, *map(json.dumps, rows)))
    assert [s.em for s in scores] == [1, 0, 1, 0]
    assert scores[1].to_row() == {"prediction": None, "em": 0.0, "f1": 0.0}
    assert scores[2].to_row() == {"id": 3, "prediction": "Paris", "em": 1.0, "f1": 1.0}
    assert scores[3].prediction == ""


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"golden_answers": ["x"]}', '"response" must be a string, not missing'),
        ('{"response": ["x"], "golden_answers": ["x"]}', '"response" must be a string'),
        ('{"response": "x"}', '"golden_answers" must be a list of strings'),
        ('{"response": "x", "golden_answers": []}', '"golden_answers" holds no answer'),
        ("x", "not JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"r\.jsonl:2: {reason}"):
        score.load(write(tmp_path, '{"response": "x", "golden_answers": ["x"]}', line))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"r\.jsonl: the file is empty"):
        score.load(write(tmp_path))


@pytest.mark.skipif(not RECORDED.exists(), reason="the recorded trajectories (../shared/data) are not here")
def test_recorded_scores_are_reproduced_on_every_row() -> None:
    scores = score.load(RECORDED, "cover")
    assert len(scores) == 125
    for s in scores:
        assert (s.prediction, s.em) == (s.row["prediction"], s.row["em"]), s.row["id"]
        assert s.f1 == pytest.approx(s.row["f1"], abs=1e-12), s.row["id"]
        assert s.reward == s.row["acc"], s.row["id"]
    assert sum(s.em for s in scores) / 125 == pytest.approx(0.344)
    assert sum(s.f1 for s in scores) / 125 == pytest.approx(0.4532, abs=5e-5)
