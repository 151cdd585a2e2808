"""Episodes side by side: one batched search a round, and the records of the environment itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from algos.training.engines import Request, Sample
from algos.training.evaluation import evaluate
from algos.training.rollout import play
from search_gym import Hit, Question, Rules, tokenizers
from search_gym.env import SearchQAEnv

TOKENIZER = tokenizers.embedded()
RULES = Rules(prompt="brief", max_searches=3, max_turn_tokens=20)
SCRIPTS = {
    "one": ["<search> a </search>", "<answer> gold </answer>"],
    "two": ["<search> b </search>", "<search> c </search>", "<answer> wrong </answer>"],
    "none": ["<answer> gold </answer>"],
    "bad": ["</search>", "<search> d </search>", "<answer> gold </answer>"],
}


class Scripted:
    """An engine that says what a script says for each question."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.turns, self.resets = names, [0] * len(names), 0

    def sample(self, requests: Sequence[Request], temperature: float) -> list[Sample]:
        samples = []
        for request in requests:
            key = request.key
            assert isinstance(key, int)
            ids = TOKENIZER.encode(SCRIPTS[self.names[key]][self.turns[key]])[: request.max_tokens]
            self.turns[key] += 1
            samples.append(Sample(ids, [-1.0] * len(ids), "tag"))
        return samples

    def reset(self) -> None:
        self.resets += 1


class Recording:
    """A retriever that remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.batches.append(list(queries))
        return [[Hit(query, query, f"about {query}", 1.0)][:k] for query in queries]


def test_each_round_searches_once_for_all() -> None:
    names, retriever = list(SCRIPTS), Recording()
    questions = [Question(name, f"{name}?", ("gold",)) for name in names]
    trajectories = play(
        questions, engine=Scripted(names), tokenizer=TOKENIZER, retriever=retriever, rules=RULES, temperature=1.0
    )
    assert retriever.batches == [["a", "b"], ["c", "d"]]
    assert [t.em for t in trajectories] == [1.0, 0.0, 1.0, 1.0]
    assert [t.searches for t in trajectories] == [1, 2, 0, 1]
    assert [t.invalid_actions for t in trajectories] == [0, 0, 0, 1]
    for t in trajectories:
        assert all(logprob == -1.0 * m for logprob, m in zip(t.logprobs, t.mask, strict=True))


def test_the_environment_gives_the_same_record_token_by_token() -> None:
    # One rule book: what the trainer plays and what Gymnasium plays are the same episode.
    names = list(SCRIPTS)
    questions = [Question(name, f"{name}?", ("gold",)) for name in names]
    trajectories = play(
        questions, engine=Scripted(names), tokenizer=TOKENIZER, retriever=Recording(), rules=RULES, temperature=1.0
    )
    env = SearchQAEnv(questions=questions, retriever=Recording(), prompt="brief", max_searches=3, max_turn_tokens=20)
    for expected in trajectories:
        observation, _ = env.reset(options={"question": expected.question_id})
        rewards, ended = [], False
        for token, sampled in zip(expected.ids, expected.mask, strict=True):
            if sampled:
                observation, reward, ended, _, _ = env.step(token)
                rewards.append(reward)
        assert ended
        assert tuple(observation["tokens"][: observation["length"]].tolist()) == expected.ids
        assert tuple(observation["loss_mask"][: observation["length"]].tolist()) == expected.mask
        assert sum(rewards) == expected.reward


def test_an_evaluation_goes_over_every_question_once() -> None:
    questions = [Question(str(i), f"{i}?", ("gold",)) for i in range(5)]
    counted: list[int] = []

    class Answering(Scripted):
        def reset(self) -> None:
            self.turns = [0] * len(self.names)

    result, trajectories = evaluate(
        questions,
        engine=Answering(["one", "two"]),
        tokenizer=TOKENIZER,
        retriever=Recording(),
        rules=RULES,
        temperature=0.0,
        batch_size=2,
        on_batch=counted.append,
    )
    assert counted == [2, 2, 1]
    assert [t.question_id for t in trajectories] == ["0", "1", "2", "3", "4"]
    assert (result.questions, result.em, result.searches) == (5, 0.6, pytest.approx(7 / 5))
    with pytest.raises(ValueError, match="no question"):
        evaluate(
            [], engine=Scripted([]), tokenizer=TOKENIZER, retriever=Recording(), rules=RULES, temperature=0.0
        )  # fmt: skip
