"""report.html: a comparison on one page, which opens from disk and asks no network for anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from experiments.comparisons import WINDOW
from experiments.config import run_folder
from experiments.report import charts, words
from experiments.report.comparison import Comparison
from experiments.report.curves import Curve, Steps, curve
from experiments.report.findings import HEADLINE, collapsed_steps, collapses, findings, has_width, headline
from experiments.report.panels import DRIFT, SECTIONS, Panel, Section, logged
from experiments.report.summary import DECODINGS, MEASURES
from search_gym.viewer import page as viewer
from search_gym.viewer.command import make as make_view

_ASSETS = Path(__file__).parent / "assets"
_NAMES = {"em": "exact match", "f1": "token F1"}


def write(comparison: Comparison, folder: Path) -> Path:
    """Write report.html into the folder of a comparison, and view.html, which it leads to; the path of the report."""
    out = folder / "report.html"
    out.write_text(render(comparison, folder, _view(folder)), encoding="utf-8", newline="\n")
    return out


def _view(folder: Path) -> str:
    """Write view.html; why there is none, where the folder holds no dialogues or ones that can't be read."""
    try:
        make_view(folder, folder / "view.html")
    except ValueError as error:
        return str(error)
    return ""


def render(comparison: Comparison, folder: Path, no_view: str = "") -> str:
    """The page.

    Args:
        comparison: what it is about.
        folder: where it will lie; only its name is used.
        no_view: why view.html is not there; empty where it is.
    """
    style = (_ASSETS / "report.css").read_text(encoding="utf-8")
    environment = Environment(
        loader=FileSystemLoader(_ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(words=words, charts=charts)
    return environment.get_template("report.html.jinja").render(
        style=Markup(style),
        style_hash=viewer.source_hash(style),
        folder=folder.resolve().name,
        comparison=comparison,
        summary=comparison.summary,
        findings=findings(comparison.summary),
        bars=bars(comparison.summary),
        collapses=collapses(comparison.summary, comparison.runs),
        tables=[
            {"decoding": decoding, "measure": _NAMES[measure], "rows": score_rows(comparison, decoding, measure)}
            for decoding, measure in _scores()
        ],
        sections=[(section, _charts(section, comparison)) for section in SECTIONS],
        overall=_overall(comparison),
        behaviour=_behaviour(comparison),
        runs=[
            _run(run, comparison.metrics[run["algorithm"]][run["seed"]], no_view)
            for run in sorted(comparison.runs, key=lambda run: (comparison.labels.index(run["algorithm"]), run["seed"]))
        ],
        no_view=no_view,
        changed=comparison.changed_settings(),
        options={run["algorithm"]: run.get("options", {}) for run in comparison.runs},
        window=WINDOW,
    )


def _scores() -> list[tuple[str, str]]:
    """Decodings and measures, the headline first."""
    everything = [(decoding, measure) for measure in MEASURES for decoding in DECODINGS]
    return sorted(everything, key=lambda score: score != HEADLINE)


def score_rows(comparison: Comparison, decoding: str, measure: str) -> list[dict[str, Any]]:
    """A row of the summary for each algorithm; "pair" is None for the baseline."""
    summary = comparison.summary
    pairs = {pair["algorithm"]: pair for pair in summary["paired"]}
    rows = []
    for entry in summary["algorithms"]:
        label, pair = entry["algorithm"], pairs.get(entry["algorithm"])
        rows.append(
            {
                "label": label,
                "seeds": entry["seeds"],
                "steps": sorted({run["steps"] for run in comparison.runs if run["algorithm"] == label}),
                "score": entry[decoding][measure],
                "pair": None if pair is None else pair[decoding][measure],
                "collapsed": collapsed_steps(label, comparison.runs),
            }
        )
    return rows


def bars(summary: Mapping[str, Any]) -> list[dict[str, float] | None]:
    """Where the interval of each comparison begins, is and ends, from -1 to 1 on a scale that all share; None where
    there is no interval."""
    found = [headline(pair) for pair in summary["paired"]]
    widest = max((max(abs(it["low"]), abs(it["high"])) for it in found if has_width(it)), default=1.0)
    return [{name: it[name] / widest for name in ("low", "mean", "high")} if has_width(it) else None for it in found]


def _curves(panel: Panel, comparison: Comparison) -> list[Curve]:
    metrics = comparison.metrics
    return [curve(label, list(metrics[label].values()), panel.key, panel.sparse) for label in comparison.labels]


def _charts(section: Section, comparison: Comparison) -> list[charts.Chart]:
    drawn = (charts.chart(panel, _curves(panel, comparison)) for panel in _panels(section, comparison))
    return [chart for chart in drawn if chart]


def _panels(section: Section, comparison: Comparison) -> list[Panel]:
    return logged(section.panels, [seed for seeds in comparison.metrics.values() for seed in seeds.values()])


def _overall(comparison: Comparison) -> list[tuple[Panel, list[str]]]:
    """Each diagnostic, with its mean over steps for every algorithm."""
    rows = []
    for panel in _panels(DRIFT, comparison):
        means = [found.overall for found in _curves(panel, comparison)]
        if not all(map(math.isnan, means)):
            rows.append((panel, [words.number(100 * mean if panel.percent else mean) for mean in means]))
    return rows


def _behaviour(comparison: Comparison) -> list[tuple[str, list[tuple[str, str]]]]:
    """For each algorithm and decoding, the searches per question at the start and at the end, means over seeds."""

    def mean(label: str, when: str, decoding: str) -> str:
        counts = [run[when][decoding].get("searches") for run in comparison.runs if run["algorithm"] == label]
        known = [count for count in counts if count is not None]
        return words.number(sum(known) / len(known) if known else None)

    return [
        (label, [(mean(label, "start", decoding), mean(label, "end", decoding)) for decoding in DECODINGS])
        for label in comparison.labels
    ]


def _run(run: Mapping[str, Any], metrics: Steps, no_view: str) -> dict[str, Any]:
    """A row of the table of runs, with links."""
    rewards = [values["reward"] for _, values in sorted(metrics.items()) if "reward" in values]
    last, step = rewards[-WINDOW:], run["collapsed"]
    log = f"runs/{run_folder(run['algorithm'], run['seed'])}/metrics.jsonl"
    views = [] if no_view else _views(run["algorithm"], run["seed"], step)
    return {
        "label": run["algorithm"],
        "seed": run["seed"],
        "steps": run["steps"],
        "reward": words.score(sum(last) / len(last) if last else None),
        "em": [words.score(run["end"][decoding]["em"]) for decoding in DECODINGS],
        "collapsed": "no" if step is None else f"step {step}",
        "minutes": f"{run['seconds'] / 60:.1f}" if "seconds" in run else words.MISSING,
        "links": [*views, ("metrics", log)],
    }


def _views(algorithm: str, seed: int, collapsed: int | None) -> list[tuple[str, str]]:
    """Where view.html shows a run: all of it, its dialogues that drifted furthest, the steps around a collapse."""
    of_run = {"algorithm": algorithm, "seed": seed}
    states = {"dialogues": of_run, "lowest ratios": of_run | {"sort": "ratio", "colour": "ratio"}}
    if collapsed is not None:
        steps = {"step-from": max(1, collapsed - 2), "step-to": collapsed + 2}
        states["collapse"] = of_run | steps | {"sort": "step", "colour": "ratio"}
    return [(text, f"view.html#{urlencode(state)}") for text, state in states.items()]
