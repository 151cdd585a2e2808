"""What becomes of the same comparison with several models: one table, one picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers import AutoConfig, AutoModelForCausalLM

from experiments import models
from experiments.config import AblateConfig
from experiments.provenance import write_json
from experiments.report import DECODINGS
from experiments.report.picture import COLOURS, STYLES

START_COLOUR = "0.5"


def report(comparisons: Sequence[AblateConfig], out: Path, console: Console) -> None:
    """Write scale.json and scale.png into `out`, and print the table, of the models of which a run is finished.

    Args:
        comparisons: one for each model, as `AblateConfig.by_model` gives them.
        out: the folder of them all.
        console: for people.
    """
    found = collect(comparisons)
    if not found:
        return
    write_json(out / "scale.json", {"models": found})
    drawn = draw(found)
    FigureCanvasAgg(drawn)
    drawn.savefig(out / "scale.png", dpi=150)
    console.print(table(found))
    console.print(f"Figure: {out / 'scale.png'}\nResults: {out / 'scale.json'}")


def collect(comparisons: Sequence[AblateConfig]) -> list[dict[str, Any]]:
    """What each comparison that has results found, in order.

        [{"model": str, "parameters": int, "folder": str, "summary": as `experiments.report.summarize` returns it}, ...]

    "folder" is the name of the comparison's folder, which lies beside scale.json.
    """
    found = []
    for config in comparisons:
        path = config.out / "results.json"
        if path.exists():
            summary = json.loads(path.read_text(encoding="utf-8"))["summary"]
            size = count_parameters(models.resolve(config.model))
            found.append({"model": config.model, "parameters": size, "folder": config.out.name, "summary": summary})
    return found


def count_parameters(model: str) -> int:
    """The number of parameters of a folder or hub id, tied ones counted once. No weights are loaded."""
    with torch.device("meta"):
        return sum(p.numel() for p in AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model)).parameters())


def labels_of(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The algorithms, in order of first appearance."""
    return list(dict.fromkeys(entry["algorithm"] for model in found for entry in model["summary"]["algorithms"]))


def entries_of(found: Sequence[Mapping[str, Any]], label: str) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Of each model that an algorithm has finished runs with, what `collect` says of it and the algorithm's entry."""
    return [
        (model, entry) for model in found for entry in model["summary"]["algorithms"] if entry["algorithm"] == label
    ]


def table(found: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each algorithm and model, 80 columns wide."""
    summary = found[0]["summary"]
    grid = Table(
        title=Text(f"Greedy exact match by model, on {summary['questions']} held-out questions", "bold"),
        caption=Text(
            f"Mean over seeds ± half its {100 * summary['confidence']:g} % Student t interval; –: one seed has none."
        ),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
    )
    for name in ("Algorithm", "Model"):
        grid.add_column(name, overflow="fold", min_width=len(name))
    for name in ("Parameters", "Start", "End", "Collapsed"):
        grid.add_column(name, justify="right", no_wrap=True)
    for label in labels_of(found):
        head = label
        for model, entry in entries_of(found, label):
            scores, runs = entry["greedy"]["em"], len(entry["seeds"])
            half = scores["end"]["half_width"]
            end = f"{scores['end']['mean']:.3f} ± {'–'.rjust(5) if half is None else f'{half:.3f}'}"
            size, fallen = words(model["parameters"]), f"{len(entry['collapsed'])} of {runs}"
            grid.add_row(*map(Text, (head, model["model"], size, f"{scores['start']:.3f}", end, fallen)))
            head = ""
        grid.add_section()
    return grid


def words(parameters: int) -> str:
    """A number of parameters as people say it: 0.95 M, 135 M, 3.1 B."""
    unit, name = (1e9, "B") if parameters >= 1e9 else (1e6, "M")
    count = parameters / unit
    return f"{count:.0f} {name}" if count >= 100 else f"{count:.3g} {name}" if count >= 1 else f"{count:.2f} {name}"


def draw(found: Sequence[Mapping[str, Any]]) -> Figure:
    """Exact match over parameters, greedy and sampled: a line for each algorithm, with the intervals over seeds, and
    one for the start. Points of one model stand a little beside each other."""
    drawn = Figure(figsize=(10, 4.2), layout="constrained")
    panels = drawn.subplots(1, 2, sharey=True)
    sizes = [model["parameters"] for model in found]
    labels = labels_of(found)
    for axes, decoding in zip(panels, reversed(DECODINGS), strict=True):
        starts = [model["summary"]["algorithms"][0][decoding]["em"]["start"] for model in found]
        axes.plot(sizes, starts, color=START_COLOUR, marker="o", markersize=4, linewidth=1.2, label="start")
        for row, label in enumerate(labels):
            _draw_algorithm(axes, entries_of(found, label), decoding, label, row, len(labels))
        axes.set_title(f"{decoding.capitalize()} exact match", loc="left", fontsize=11, fontweight="bold")
        axes.set_xscale("log")
        axes.set_xticks(sizes, [f"{model['model']}\n{words(model['parameters'])}" for model in found], fontsize=9)
        axes.minorticks_off()
        axes.grid(color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.15)
        axes.set_ylim(-0.03, 1.03)  # the interval of two seeds may go far beyond what a score can be
    drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=6, frameon=False)
    drawn.supxlabel("Mean over seeds, with its 95 % interval.", fontsize=9, color="0.35")
    return drawn


def _draw_algorithm(
    axes: Axes,
    entries: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
    decoding: str,
    label: str,
    row: int,
    rows: int,
) -> None:
    beside = 1.04 ** (row - (rows - 1) / 2)
    ends = [entry[decoding]["em"]["end"] for _, entry in entries]
    axes.errorbar(
        [model["parameters"] * beside for model, _ in entries],
        [end["mean"] for end in ends],
        yerr=[end["half_width"] or 0.0 for end in ends],
        color=COLOURS[row % len(COLOURS)],
        linestyle=STYLES[row % len(STYLES)],
        marker="o",
        markersize=4,
        linewidth=1.6,
        capsize=3,
        label=label,
    )
