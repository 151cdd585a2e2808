"""Plays episodes with an engine, all of them side by side."""

from __future__ import annotations

from collections.abc import Sequence

from algos.training.engines import Engine, Request
from search_gym.episode import Episode
from search_gym.questions import Question
from search_gym.retrieval import Retriever
from search_gym.rules import Rules
from search_gym.searching import carry_out
from search_gym.tokenizers import Tokenizer
from search_gym.trajectory import Trajectory


def play(
    questions: Sequence[Question],
    *,
    engine: Engine,
    tokenizer: Tokenizer,
    retriever: Retriever,
    rules: Rules,
    temperature: float = 1.0,
) -> list[Trajectory]:
    """Play one episode for each question, turn by turn, to the end.

    In each round every episode that goes on samples one turn, and the searches of all of them go out as one batch.

    Args:
        questions: may hold a question several times, as group-based algorithms need it.
        engine: begins with nothing cached, and is left so.
        tokenizer: that of the engine's policy.
        retriever: answers the searches.
        rules: of the episodes.
        temperature: of the sampling; 0 is greedy.

    Returns:
        One trajectory a question, in order.
    """
    episodes = [Episode(question, tokenizer, rules) for question in questions]
    engine.reset()
    while going := [(key, episode) for key, episode in enumerate(episodes) if not episode.done]:
        requests = [Request(key, episode.ids, episode.room) for key, episode in going]
        samples = engine.sample(requests, temperature)
        for (_, episode), sample in zip(going, samples, strict=True):
            episode.feed(sample.ids, sample.logprobs)
        carry_out(episodes, retriever)
    engine.reset()
    return [episode.trajectory() for episode in episodes]
