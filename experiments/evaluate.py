"""How good is a policy? Answers questions with it, scores the answers, and says how far the scores can be trusted.

python experiments/evaluate.py --model RUN/policy --benchmarks all --data FOLDER --retriever http://127.0.0.1:8000
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see ablate.py

import torch
from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from algos.training.engines import Engine, EngineError
from algos.training.engines.opening import open_engine
from algos.training.loading import context_of, load_policy
from algos.training.rollout import play
from experiments import answers, folders, models, scores
from experiments.config import EvaluateConfig, parse_evaluation
from experiments.provenance import environment, write_json
from experiments.running import read_benchmarks, read_questions
from search_gym import tokenizers
from search_gym.questions import Question
from search_gym.retrieval import Retriever
from search_gym.retrieval.strict import SearchError
from search_gym.tokenizers import Tokenizer
from search_gym.trajectory import Trajectory


@dataclass(frozen=True)
class QuestionSet:
    """What is answered and scored by itself."""

    title: str
    questions: list[Question]
    published: int | None
    """How many questions the whole benchmark has; None for questions that are no benchmark."""


@dataclass(frozen=True)
class Bench:
    """All that answering needs."""

    config: EvaluateConfig
    tokenizer: Tokenizer
    retriever: Retriever
    sets: dict[str, QuestionSet]
    engine: Callable[[int], Engine]
    """The engine for a chunk of questions, by its seed."""
    weights: str
    """What tells the model's weights from others."""

    @classmethod
    def open(cls, config: EvaluateConfig) -> Bench:
        """Load everything, so that what is missing is said at once."""
        sets = open_sets(config)
        model = models.resolve(config.model)
        tokenizer, retriever = tokenizers.load(model), config.game.open_retriever()
        engine = open_engines(config, model, tokenizer)
        return cls(config, tokenizer, retriever, sets, engine, models.fingerprint(model))

    def path(self, name: str) -> Path:
        """The answers to the questions of a set."""
        return self.config.out / name / "answers.jsonl"

    def answer(self, name: str, chunk: list[Question], advance: Callable[[int], None]) -> list[Trajectory]:
        """The answers to a chunk of questions: all samples of the first, all of the second, and so on."""
        config = self.config
        played = play(
            [question for question in chunk for _ in range(config.samples)],
            engine=self.engine(_seed(config.seed, name, chunk[0].id)),
            tokenizer=self.tokenizer,
            retriever=self.retriever,
            rules=config.game.rules(),
            temperature=config.decoding_temperature,
            concurrency=config.batch_episodes,
            on_done=advance,
        )
        return [replace(answer, extra={"sample": place % config.samples}) for place, answer in enumerate(played)]


def _seed(seed: int, name: str, first: str) -> int:
    """A chunk's own seed: its samples do not depend on what was answered before it in this process."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}/{first}".encode()).digest()[:4])


def open_sets(config: EvaluateConfig) -> dict[str, QuestionSet]:
    """The questions, by the name of the folder that their answers go to.

    Raises:
        ValueError, FileNotFoundError: if some are missing or cannot be read; names them.
    """
    if config.benchmarks:
        named = read_benchmarks(config.benchmarks, config.data, config.max_questions)
        return {
            benchmark.name: QuestionSet(benchmark.title, list(questions), benchmark.size)
            for benchmark, questions in named.items()
        }
    source = config.questions or "embedded:test"
    title = Path(source).stem if Path(source).is_file() else source
    return {
        re.sub(r"[^\w.-]+", "-", title): QuestionSet(title, list(read_questions(source, config.max_questions)), None)
    }


def open_engines(config: EvaluateConfig, model: str, tokenizer: Tokenizer) -> Callable[[int], Engine]:
    """What gives the engine for a seed.

    Raises:
        ValueError: if there is no model, or it cannot read as many tokens as an episode may have.
    """
    described = config.engine_config()
    if config.engine != "hf":
        engine = open_engine(described, model=model, policy=None, tokenizer=tokenizer, seed=config.seed)
        return lambda _: engine  # starting one takes long, so it serves all chunks
    policy = load_policy(model, dtype=getattr(torch, config.dtype), device=config.device)
    limit, needed = context_of(policy), config.game.max_context_tokens
    if limit is not None and limit < needed:
        raise ValueError(f"{model} reads {limit} tokens, and an episode may have {needed}: lower --max-context-tokens")
    return lambda seed: open_engine(described, model=model, policy=policy, tokenizer=tokenizer, seed=seed)


@contextmanager
def open_folder(bench: Bench) -> Iterator[None]:
    """Make the folder of the results, or see that the one that is there belongs to the same evaluation; hold it.

    Raises:
        ValueError: naming each setting that differs, or if another process works in the folder.
    """
    config = bench.config
    config.out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(config.out / ".lock", timeout=0):
            folders.claim(
                config.out,
                asdict(config) | {"weights": bench.weights},
                # None of these changes an answer, or the questions themselves are compared.
                free={
                    "out",
                    "device",
                    "batch_episodes",
                    "benchmarks",
                    "data",
                    "game.search_cache",
                    "game.on_search_error",
                },
                holds="an evaluation",
            )
            yield
    except Timeout as error:
        raise ValueError(f"another process is at work in {config.out}: wait for it, or name another --out") from error


def count_answers(bench: Bench) -> dict[str, int]:
    """How many questions of each set are answered already; see `answers.count`."""
    config = bench.config
    return {
        name: answers.count(bench.path(name), found.questions, config.samples, config.chunk_questions)
        for name, found in bench.sets.items()
    }


def evaluate(bench: Bench, done: dict[str, int], console: Console) -> dict[str, Any]:
    """Answer what is not answered yet, then score all of it: results.json.

    Args:
        done: how many questions of each set are answered already.
    """
    config = bench.config
    if kept := sum(done.values()):
        total = sum(len(found.questions) for found in bench.sets.values())
        console.print(f"{kept} of {total} questions were answered before and are kept.")
    _answer_all(bench, done, console)
    by_name, average = scores.summarize({name: scores.read(bench.path(name), config.samples) for name in bench.sets})
    results = {
        "model": config.model,
        "weights": bench.weights,
        "samples": config.samples,
        "temperature": config.decoding_temperature,
        "benchmarks": {
            name: {
                "title": found.title,
                "questions": len(found.questions),
                "published": found.published,
                "scores": by_name[name],
            }
            for name, found in bench.sets.items()
        },
        "average": average,
        "environment": environment(),
    }
    write_json(config.out / "results.json", results)
    return results


def _answer_all(bench: Bench, done: dict[str, int], console: Console) -> None:
    """The answers that are missing, chunk by chunk, under a progress bar that counts episodes."""
    config = bench.config
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(compact=True),
    )  # fmt: skip
    left = sum(len(found.questions) - done[name] for name, found in bench.sets.items()) * config.samples
    with Progress(*columns, console=console, speed_estimate_period=120) as progress:
        bar = progress.add_task("", total=left)
        for name, found in bench.sets.items():
            progress.update(bar, description=found.title)
            for start in range(done[name], len(found.questions), config.chunk_questions):
                chunk = found.questions[start : start + config.chunk_questions]
                answers.append(bench.path(name), bench.answer(name, chunk, lambda n: progress.advance(bar, n)))
        progress.update(bar, description="done")


def show(results: dict[str, Any], out: Path, console: Console) -> None:
    """The table, and where the rest is."""
    console.print(scores.table(results))
    failed = {
        entry["title"]: round(entry["scores"]["failed_searches"]["mean"] * entry["questions"] * results["samples"])
        for entry in results["benchmarks"].values()
    }
    if sum(failed.values()):
        where = ", ".join(f"{title}: {count}" for title, count in failed.items() if count)
        console.print(f"{sum(failed.values())} searches failed, of which the policy was told ({where}).")
    console.print(f"Results: {out / 'results.json'}\nAnswers: {out}/*/answers.jsonl", soft_wrap=True)


def main(argv: list[str] | None = None) -> int:
    """The command; 0 when all is done, 1 when a search failed that was not to or the engine or the disk refused, 2 for
    settings that cannot be used, 130 when it was stopped."""
    console = Console()
    try:
        with ExitStack() as held:
            try:
                config = parse_evaluation(argv)
                bench = Bench.open(config)
                held.enter_context(open_folder(bench))
                done = count_answers(bench)
            except (ValueError, TypeError, ImportError, OSError, EngineError) as error:
                print(f"evaluate: error: {error}", file=sys.stderr)
                return 2
            results = evaluate(bench, done, console)
        show(results, config.out, console)
    except (SearchError, EngineError, OSError) as error:
        print(f"evaluate: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        console.print("\nStopped. Answers are kept: the same command goes on with the others.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
