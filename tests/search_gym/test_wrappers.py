"""Text in and out, and recording."""

from __future__ import annotations

import random
from pathlib import Path

import gymnasium
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from hypothesis import given
from hypothesis import strategies as st
from playing import SMALL, TOKENIZER, turn_ids

from search_gym.episode import Episode
from search_gym.trajectory import Trajectory, read_jsonl
from search_gym.vector import EpisodeVectorEnv
from search_gym.wrappers import AnyText, RecordTrajectories, RecordVectorTrajectories, TextActions


def make_text() -> TextActions:
    return TextActions(gymnasium.make("SearchQATurns-v0", questions="embedded:test", **SMALL))


def test_an_agent_that_thinks_in_strings() -> None:
    env = make_text()
    dialogue, _ = env.reset(seed=0)
    assert dialogue.startswith("Question: ")
    dialogue, _, _, _, info = env.step("<search> Selby </search>")
    assert "<search> Selby </search><information>Doc 1" in dialogue
    assert info["searches"] == 1
    episode = env.unwrapped.episode  # type: ignore[attr-defined]
    _, reward, terminated, _, info = env.step(f"<answer>{episode.question.golds[0]}</answer>")
    assert (reward, terminated, info["em"]) == (1.0, True, 1.0)
    env.reset()
    before = list(env.unwrapped.episode.ids)  # type: ignore[attr-defined]
    env.step("<|end|>")
    policy = env.unwrapped.episode.turns[0].policy  # type: ignore[attr-defined]
    ids = env.unwrapped.episode.ids  # type: ignore[attr-defined]
    assert ids[: policy[0]] == before
    assert TOKENIZER.eos_id not in ids[slice(*policy)]  # text is never a control token


ENV = make_text()


@given(st.text())
def test_any_unicode_text_is_an_action(text: str) -> None:
    ENV.reset(seed=0)
    assert text in ENV.action_space
    dialogue = ENV.step(text)[0]
    assert dialogue in ENV.observation_space
    episode: Episode = ENV.unwrapped.episode  # type: ignore[attr-defined]
    assert TOKENIZER.encode(text)[: SMALL["max_turn_tokens"]] == episode.ids[slice(*episode.turns[0].policy)]


def test_a_text_that_utf8_cannot_write_is_refused() -> None:
    env = make_text()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="half a surrogate pair"):
        env.step("\ud800")
    with pytest.raises(TypeError, match="text of a turn, not list"):
        env.step([1, 2])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="wraps SearchQATurns-v0"):
        TextActions(gymnasium.make("SearchQA-v0"))


def test_texts_batch_and_seed() -> None:
    space, other = AnyText(30, seed=1), AnyText(30, seed=1)
    samples = [space.sample() for _ in range(50)]
    assert samples == [other.sample() for _ in range(50)]
    assert all(sample in space for sample in samples)
    assert "é" * 30 in space
    assert "é" * 31 not in space
    assert 3 not in space
    envs = SyncVectorEnv([make_text, make_text])
    dialogues, _ = envs.reset(seed=0)
    assert isinstance(dialogues, tuple)
    assert all(text.startswith("Question: ") for text in dialogues)
    assert envs.step(("<search> Selby </search>", "é"))[4]["searches"].tolist() == [1, 0]


def play(env: gymnasium.Env, episodes: int, name: str) -> list[Trajectory]:
    """Play to the end so many times; what was played."""
    rng, played = random.Random(0), []
    for seed in range(episodes):
        env.reset(seed=seed)
        done = False
        while not done:
            episode: Episode = env.unwrapped.episode  # type: ignore[attr-defined]
            ids = turn_ids(episode.question, rng, episode.room)
            for action in ids if name == "SearchQA-v0" else [ids]:
                _, _, terminated, truncated, _ = env.step(action)
                done = terminated or truncated
                if done:
                    break
        played.append(env.unwrapped.episode.trajectory(agent="random"))  # type: ignore[attr-defined]
    return played


@pytest.mark.parametrize("name", ["SearchQA-v0", "SearchQATurns-v0"])
def test_what_was_played_is_what_is_read_again(name: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / "played.jsonl"
    env = RecordTrajectories(gymnasium.make(name, **SMALL), path, agent="random")
    played = play(env, 4, name)
    env.reset()  # given up below: not written
    assert list(read_jsonl(path)) == played
    again = RecordTrajectories(gymnasium.make(name, **SMALL), path, agent="random")
    more = play(again, 1, name)
    assert list(read_jsonl(path)) == played + more


def test_an_episode_that_a_limit_cut_off_says_so(tmp_path: Path) -> None:
    path = tmp_path / "played.jsonl"
    env = RecordTrajectories(TimeLimit(gymnasium.make("SearchQATurns-v0", **SMALL), 1), path)
    env.reset(seed=0)
    env.step(TOKENIZER.encode("<search> Selby </search>"))
    (trajectory,) = read_jsonl(path)
    assert trajectory.extra == {"time_limit": True}
    assert not trajectory.terminated
    assert not trajectory.truncated


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_a_vector_environment_is_recorded(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "played.jsonl"
    inner = gymnasium.make_vec("SearchQATurns-v0", num_envs=2, autoreset_mode=mode, **SMALL)
    env = RecordVectorTrajectories(inner, path, step=7)
    env.reset(seed=0)
    search, answer = TOKENIZER.encode("<search> Selby </search>"), TOKENIZER.encode("<answer> x </answer>")
    env.step((search, answer))
    if mode != "disabled":
        env.step((answer, search))  # with next_step the second place begins an episode, and its action is not looked at
    recorded = list(read_jsonl(path))
    assert [t.extra for t in recorded] == [{"step": 7, "place": 1}, {"step": 7, "place": 0}][: len(recorded)]
    assert len(recorded) == (1 if mode == "disabled" else 2)
    assert all(t.terminated and t.answer == "x" for t in recorded)
    assert isinstance(inner, EpisodeVectorEnv)


def test_only_our_environments_are_recorded(tmp_path: Path) -> None:
    other = gymnasium.make("CartPole-v1")
    with pytest.raises(TypeError, match="RecordTrajectories wraps SearchQA-v0 or SearchQATurns-v0"):
        RecordTrajectories(other, tmp_path / "x.jsonl")
    with pytest.raises(TypeError, match="RecordVectorTrajectories wraps"):
        RecordVectorTrajectories(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")]), tmp_path / "x.jsonl")
