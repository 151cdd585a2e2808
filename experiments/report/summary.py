"""What an ablation found, in numbers: means and intervals over seeds, and differences seed by seed.

A result is one run, (algorithm, seed), as a dict:

    {"algorithm": str, "seed": int, "start": SCORES, "end": SCORES, "collapsed": int or None, ...}
    SCORES = {"sampled": {"em": float, "f1": float, "questions": int, ...}, "greedy": the same}

"collapsed" is the step at which the run did (`comparisons.collapsed`); further keys are ignored.
Intervals are over seeds: how far the mean would move if training ran again with other seeds, on the same questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.comparisons import CONFIDENCE, improvement, iqm_interval, mean_interval

DECODINGS = ("sampled", "greedy")
MEASURES = ("em", "f1")


def summarize(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means and intervals over seeds, for each algorithm in order of first appearance, ready for JSON.

    INTERVAL is what `mean_interval` and, for "iqm", `iqm_interval` return, CHANCE what `improvement` does. The
    baseline of every pair is the first algorithm; a difference is that of the end scores, algorithm minus baseline,
    over the seeds that both have finished; "better" compares all runs of the two. "collapsed" are the seeds that did.

        {"questions": int, "confidence": 0.95,
         "algorithms": [{"algorithm": str, "seeds": [int, ...], "collapsed": [int, ...],
                         "sampled": {"em": {"start": float, "end": INTERVAL, "gain": INTERVAL, "iqm": INTERVAL},
                                     "f1": the same},
                         "greedy": the same}, ...],
         "paired": [{"baseline": str, "algorithm": str, "seeds": [int, ...],
                     "sampled": {"em": INTERVAL | {"better": CHANCE}, "f1": the same}, "greedy": the same}, ...]}

    Raises:
        ValueError: if there are no results, a run comes twice, or runs were scored on different numbers of questions.
    """
    if not results:
        raise ValueError("no results to summarize: no run has finished")
    questions = {
        row[when][decoding]["questions"] for row in results for when in ("start", "end") for decoding in DECODINGS
    }
    if len(questions) > 1:
        raise ValueError(
            f"runs were scored on different numbers of questions, {sorted(questions)}: they do not compare"
        )
    runs: dict[str, dict[int, Mapping[str, Any]]] = {}
    for row in results:
        seeds = runs.setdefault(row["algorithm"], {})
        if row["seed"] in seeds:
            raise ValueError(f"two results of {row['algorithm']}, seed {row['seed']}")
        seeds[row["seed"]] = row
    baseline, *others = runs
    return {
        "questions": questions.pop(),
        "confidence": CONFIDENCE,
        "algorithms": [_algorithm(label, seeds) for label, seeds in runs.items()],
        "paired": [_pair(baseline, other, runs) for other in others],
    }


def _algorithm(label: str, runs: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    def scores(decoding: str, measure: str) -> dict[str, Any]:
        start, end = ([row[when][decoding][measure] for row in runs.values()] for when in ("start", "end"))
        gain = mean_interval(after - before for before, after in zip(start, end, strict=True))
        return {
            "start": mean_interval(start)["mean"],
            "end": mean_interval(end),
            "gain": gain,
            "iqm": iqm_interval(end),
        }

    table = {decoding: {measure: scores(decoding, measure) for measure in MEASURES} for decoding in DECODINGS}
    fallen = sorted(seed for seed, row in runs.items() if row["collapsed"] is not None)
    return {"algorithm": label, "seeds": sorted(runs), "collapsed": fallen, **table}


def _pair(baseline: str, other: str, runs: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> dict[str, Any]:
    ours, theirs = runs[other], runs[baseline]
    seeds = sorted(ours.keys() & theirs.keys())

    def difference(decoding: str, measure: str) -> dict[str, Any]:
        ends = [{seed: row["end"][decoding][measure] for seed, row in runs.items()} for runs in (ours, theirs)]
        better = improvement(*(list(scores.values()) for scores in ends))
        return mean_interval(ends[0][seed] - ends[1][seed] for seed in seeds) | {"better": better}

    table = {decoding: {measure: difference(decoding, measure) for measure in MEASURES} for decoding in DECODINGS}
    return {"baseline": baseline, "algorithm": other, "seeds": seeds, **table}
