"""How dialogues look in a terminal."""

from __future__ import annotations

import re

import gymnasium
import pytest
from playing import SMALL, TOKENIZER

from search_gym import rendering
from search_gym.episode import Episode
from search_gym.questions import Question
from search_gym.retrieval import Passage
from search_gym.turns import SearchQATurnsEnv


def played() -> SearchQATurnsEnv:
    env = SearchQATurnsEnv(questions="embedded:test", render_mode="ansi", **SMALL)
    env.reset(seed=0)
    for text in ("<search> Selby </search>", "</answer>", "<answer> Oslo </answer>"):
        env.step(TOKENIZER.encode(text))
    return env


def test_everything_is_shown_and_told_apart() -> None:
    env = played()
    assert env.episode is not None
    pieces = list(rendering.segments(env.episode))
    assert [kind for kind, _ in pieces] == ["prompt", "policy", "passages", "policy", "notice", "policy"]
    assert "".join(text for _, text in pieces) == env.episode.text
    shown = env.render()
    assert shown is not None
    assert len({re.findall(r"\x1b\[(\d+)m" + re.escape(text[:8]), shown)[0] for _, text in pieces}) == 4
    assert re.sub(r"\x1b\[\d+m", "", shown).endswith("answered, reward -0.375, exact match 0, F1 0.00")


def test_a_terminal_obeys_nothing_that_a_passage_says() -> None:
    evil = "a\x1b[2J\x07\x9b31m\x7fb\r\tc"
    env = SearchQATurnsEnv(
        questions=[Question("1", "Where?", ("x",))], corpus=[Passage("1", "Evil", evil)], render_mode="ansi", **SMALL
    )
    env.reset(seed=0)
    env.step(TOKENIZER.encode("<search> Evil </search>"))
    shown = re.sub(r"\x1b\[\d+m", "", env.render() or "")
    assert "Evil" in shown
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)


@pytest.mark.parametrize("name", ["SearchQA-v0", "SearchQATurns-v0"])
def test_human_mode_prints_each_piece_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    env = gymnasium.make(name, render_mode="human", **SMALL)
    seen = ""
    for seed in (0, 1):
        env.reset(seed=seed)
        for text in ("<search> Selby </search>", "<answer> x </answer>"):
            ids = TOKENIZER.encode(text)
            for action in ids if name == "SearchQA-v0" else [ids]:
                env.step(action)
        assert env.render() is None
        episode: Episode = env.unwrapped.episode  # type: ignore[attr-defined]
        seen += ("\n" if seen else "") + episode.text + "\n" + rendering.ending(episode) + "\n"
    assert re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out) == seen


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown render_mode 'rgb_array'; there are: ansi, human"):
        SearchQATurnsEnv(render_mode="rgb_array")
    with pytest.raises(RuntimeError, match="call reset"):
        SearchQATurnsEnv(render_mode="ansi").render()
    env = SearchQATurnsEnv()
    env.reset(seed=0)
    assert env.render() is None
