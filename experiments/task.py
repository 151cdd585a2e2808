"""What is learnt: the questions, those that are held out, and what is rewarded, on top of the game."""

from __future__ import annotations

from dataclasses import dataclass, replace

from experiments.games import Game
from search_gym.questions import benchmarks
from search_gym.retrieval.index import RETRIEVERS
from search_gym.rules import Rules


@dataclass(frozen=True)
class Task(Game):
    """What is learnt, and by the rules of which game."""

    questions: str = "embedded"
    """Questions to train on: "embedded", a JSONL or parquet file, "hf:NAME:SPLIT" or "hf:NAME:CONFIG:SPLIT"."""
    held_out: str = ""
    """Questions to evaluate on, likewise. Empty: the embedded world's own test split, or a part of the file that is
    then not trained on."""
    held_out_size: int = 512
    """How many questions to evaluate on, at most; of a file that is trained on too, at most a half; of benchmarks, so
    many of each, drawn at random, always the same ones."""
    benchmarks: str = ""
    """Questions to evaluate on, by name, instead of --held-out: nq, triviaqa, popqa, hotpotqa, 2wikimultihopqa,
    musique, bamboogle, several of them separated by commas, or all. Each is scored by itself, too."""
    data: str = ""
    """Where the benchmarks are: a folder that holds nq/test.jsonl and so on, or nq.jsonl; or "hf:", FlashRAG's
    collection on the Hugging Face hub."""
    reward: str = "em"
    """What is rewarded: em, f1, cover, format, or a sum such as em+0.2*format."""
    search_cost: float = 0.0
    """Subtracted from the reward for every search."""
    invalid_cost: float = 0.0
    """Subtracted from the reward for every turn that is no action."""

    def __post_init__(self) -> None:
        if self.held_out_size < 1:
            raise ValueError(f"--held-out-size must be at least 1, not {self.held_out_size}")
        check_benchmarks(self.benchmarks, self.data, "--held-out" if self.held_out else "")
        if self.benchmarks:
            check_passages(self)

    def rules(self) -> Rules:
        """The rules of the episodes."""
        costs = {"search_cost": self.search_cost, "invalid_cost": self.invalid_cost}
        return replace(super().rules(), reward=self.reward, **costs)


def check_benchmarks(names: str, data: str, other: str) -> None:
    """Raise ValueError unless the options name benchmarks that there are, or none.

    Args:
        names: what --benchmarks gives.
        data: what --data gives.
        other: an option that is given, and that says what is asked, too; empty if there is none.
    """
    if other and names:
        raise ValueError(f"{other} and --benchmarks exclude each other: give one of them")
    if bool(data) != bool(names):
        raise ValueError('--benchmarks and --data go together: "--benchmarks nq --data FOLDER", or "--data hf:"')
    if names:
        benchmarks.select(names)


def check_passages(game: Game) -> None:
    """Raise ValueError if the passages would be those of the embedded world."""
    if not game.corpus and game.retriever in RETRIEVERS:
        raise ValueError(
            "these questions cannot be answered from the embedded world: name the passages with --corpus, or a "
            "--retriever that brings them"
        )
