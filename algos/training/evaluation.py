"""How well a policy answers held-out questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from algos.training.engines import Engine
from algos.training.rollout import play
from search_gym.questions import Question
from search_gym.retrieval import Retriever
from search_gym.rules import Rules
from search_gym.tokenizers import Tokenizer
from search_gym.trajectory import Trajectory


@dataclass(frozen=True)
class Evaluation:
    """Means over the questions."""

    questions: int
    em: float
    f1: float
    searches: float
    """Searches made per question."""
    failed_searches: float
    """Searches per question that could not be carried out."""

    @classmethod
    def of(cls, answers: Sequence[Trajectory]) -> Evaluation:
        """Of the answers to at least one question, one to each."""
        count = len(answers)
        return cls(
            questions=count,
            em=sum(t.em for t in answers) / count,
            f1=sum(t.f1 for t in answers) / count,
            searches=sum(t.searches for t in answers) / count,
            failed_searches=sum(t.failed_searches for t in answers) / count,
        )


def evaluate_decodings(
    questions: Sequence[Question], *, temperature: float, **settings: Any
) -> dict[str, tuple[Evaluation, list[Trajectory]]]:
    """Answer every question twice: "sampled" at a temperature, and "greedy". The `settings` are those of `evaluate`."""
    # Sampled first: greedy decoding draws no random numbers, so both can share an engine.
    temperatures = {"sampled": temperature, "greedy": 0.0}
    return {name: evaluate(questions, temperature=value, **settings) for name, value in temperatures.items()}


def evaluate(
    questions: Sequence[Question],
    *,
    engine: Engine,
    tokenizer: Tokenizer,
    retriever: Retriever,
    rules: Rules,
    temperature: float,
    batch_size: int = 128,
    on_batch: Callable[[int], None] = lambda _: None,
) -> tuple[Evaluation, list[Trajectory]]:
    """Answer every question once.

    Args:
        questions: at least one.
        engine, tokenizer, retriever, rules: as `play` takes them.
        temperature: 0 is greedy.
        batch_size: how many episodes run side by side.
        on_batch: called with the number of questions answered since the last call.
    """
    if not questions:
        raise ValueError("there is no question to evaluate on")
    done = play(
        questions,
        engine=engine,
        tokenizer=tokenizer,
        retriever=retriever,
        rules=rules,
        temperature=temperature,
        concurrency=batch_size,
        on_done=on_batch,
    )
    return Evaluation.of(done), done
