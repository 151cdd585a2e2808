"""Which algorithm? Trains each with each seed from the same start, and shows what became of them.

python experiments/ablate.py --algos grpo,sapo --seeds 3
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# Threads that wait sleep; this must be set before torch is loaded. By default they spin, and where another program
# wants the same cores they then hold up the very thread that they wait for.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from algos.training.distributed import Ranks
from algos.training.engines.hf import HFEngine
from algos.training.evaluation import evaluate_decodings
from algos.training.learner import Metrics
from algos.training.loading import load_policy
from algos.training.policy import CausalLMPolicy
from experiments import folders, report
from experiments.comparisons import collapsed
from experiments.config import AblateConfig, parse, run_folder
from experiments.provenance import environment, write_json
from experiments.running import Setting, open_trainer, options_of
from search_gym.retrieval.strict import SearchError
from search_gym.trajectory import write_jsonl

# Evaluations sample with random numbers of their own, the same for every run: they differ by their policies alone.
EVALUATION_SEED = 1_000_003


@dataclass(frozen=True)
class Bench:
    """What all runs of a comparison share."""

    config: AblateConfig
    setting: Setting

    @classmethod
    def open(cls, config: AblateConfig) -> Bench:
        """Load everything that the runs share, so that what is missing is said at once."""
        return cls(config, Setting.open(config.task, config.model))

    def evaluate(self, policy: CausalLMPolicy, out: Path, advance: Callable[[int], None]) -> dict[str, Any]:
        """Answers to the held-out questions, sampled as in training and greedy; the dialogues go to `out`."""
        setting = self.setting
        found = evaluate_decodings(
            setting.held_out,
            temperature=self.config.trainer.temperature,
            engine=HFEngine(policy, setting.tokenizer, EVALUATION_SEED),
            tokenizer=setting.tokenizer,
            retriever=setting.retriever,
            rules=self.config.task.rules(),
            batch_size=self.config.batch_episodes,
            on_batch=advance,
        )
        out.mkdir(parents=True, exist_ok=True)
        for decoding, (_, trajectories) in found.items():
            write_jsonl(out / f"{decoding}.jsonl", trajectories)
        return {decoding: asdict(result) for decoding, (result, _) in found.items()}


def run(bench: Bench, label: str, seed: int, start: dict[str, Any], out: Path, advance: Callable[[int], None]) -> None:
    """One run: train, evaluate, write. Its result.json comes last, so a run that was stopped has none."""
    began = time.perf_counter()
    ranks = Ranks(bench.config.device)
    trainer = open_trainer(bench.setting, label, bench.config.trainer, seed=seed, ranks=ranks)
    failed, rewards = 0, list[float]()

    def on_step(metrics: Metrics) -> None:
        nonlocal failed
        failed += round(metrics["failed_searches"] * metrics["episodes"])
        rewards.append(metrics["reward"])
        advance(bench.config.trainer.rollouts)

    trainer.train(out, on_step=on_step)
    end = bench.evaluate(trainer.policy, out / "end", advance)
    result = {"algorithm": label, "seed": seed, "start": start, "end": end, "steps": trainer.steps_done}
    result |= {"options": options_of(trainer.algorithm), "failed_searches": failed, "collapsed": collapsed(rewards)}
    write_json(out / "result.json", result | {"seconds": round(time.perf_counter() - began, 1)})


def open_folder(config: AblateConfig) -> None:
    """Make the run folder, or see that the one that is there belongs to the same comparison.

    Algorithms and seeds may be added to a folder; everything else must be as it was, or its runs could not be compared.

    Raises:
        ValueError: naming each setting that differs.
    """
    folders.claim(
        config.out,
        asdict(config),
        free={
            "algos",
            "preset",
            "seeds",
            "out",
            "device",
            "batch_episodes",
            "task.search_cache",
            "task.on_search_error",
        },
        holds="a comparison",
    )
    write_json(config.out / "environment.json", environment())


def compare(bench: Bench, console: Console) -> None:
    """Run what is not finished yet, then report on all of it."""
    config = bench.config
    folders = {
        (label, seed): config.out / "runs" / run_folder(label, seed)
        for seed in range(config.seeds)
        for label in config.labels
    }
    missing = {key: folder for key, folder in folders.items() if not (folder / "result.json").exists()}
    if len(missing) < len(folders):
        console.print(f"{len(folders) - len(missing)} of {len(folders)} runs were finished before and are kept.")
    _run_all(bench, missing, console)
    results = [json.loads((folder / "result.json").read_text(encoding="utf-8")) for folder in folders.values()]
    summary = report.summarize(results)
    write_json(config.out / "results.json", {"summary": summary, "runs": results})
    logs = {label: [folders[label, seed] / "metrics.jsonl" for seed in range(config.seeds)] for label in config.labels}
    report.figure(logs, config.out / "figure.png")
    console.print(report.table(summary))
    if failed := failed_searches(results):
        where = ", ".join(f"{name}: {count}" for name, count in failed.items())
        console.print(f"{sum(failed.values())} searches failed, of which the policies were told ({where}).")
    console.print(f"Figure: {config.out / 'figure.png'}\nResults: {config.out / 'results.json'}")
    console.print(f"Report: {report.write(config.out)}")


def failed_searches(results: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many searches failed at the start and in each run, by name; only where some did."""

    def in_evaluation(scores: Mapping[str, Any]) -> int:
        return sum(round(score.get("failed_searches", 0) * score["questions"]) for score in scores.values())

    found = {"start": in_evaluation(results[0]["start"])}
    for result in results:
        name = f"{result['algorithm']} seed {result['seed']}"
        found[name] = result.get("failed_searches", 0) + in_evaluation(result["end"])
    return {name: count for name, count in found.items() if count}


def _run_all(bench: Bench, missing: dict[tuple[str, int], Path], console: Console) -> None:
    """The runs, under one progress bar that counts episodes, for they take the time."""
    config, held_out = bench.config, 2 * len(bench.setting.held_out)
    episodes = config.trainer.steps * config.trainer.rollouts
    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(compact=True),
    )  # fmt: skip
    start_file = config.out / "start" / "result.json"
    to_start = 0 if start_file.exists() else held_out
    with Progress(*columns, console=console, speed_estimate_period=120) as progress:
        bar = progress.add_task("start", total=to_start + len(missing) * (episodes + held_out))

        def advance(count: int) -> None:
            progress.advance(bar, count)

        if to_start and missing:
            write_json(
                start_file,
                bench.evaluate(load_policy(bench.setting.model, device=config.device), config.out / "start", advance),
            )
        start = json.loads(start_file.read_text(encoding="utf-8")) if missing else {}
        for (label, seed), folder in missing.items():
            progress.update(bar, description=f"{label} seed {seed}")
            run(bench, label, seed, start, folder, advance)
        progress.update(bar, description="done")


def main(argv: list[str] | None = None) -> int:
    """The command; 0 when all is done, 1 when a search failed that was not to, 2 for settings that cannot be used, 130
    when it was stopped."""
    console = Console()
    sys.path.append(str(Path.cwd()))  # for --algos package.module:Name; a script has its own folder on the path instead
    try:
        try:
            config = parse(argv)
            bench = Bench.open(config)
            open_folder(config)
        except (ValueError, TypeError, FileNotFoundError) as error:
            print(f"ablate: error: {error}", file=sys.stderr)
            return 2
        compare(bench, console)
    except SearchError as error:
        print(f"ablate: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        console.print("\nStopped. Finished runs are kept: the same command goes on with the others.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
