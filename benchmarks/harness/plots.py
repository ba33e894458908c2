"""Pictures of a result: one for each question, which is a metric in its unit; a line for each case that was measured for it.

Times, rates and sizes are on a logarithmic axis, as cases differ by factors. Owns how pictures look, and
the names of their files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.results import Distribution, Result, Row

LINEAR = ("%", "x")
"""Units of shares and ratios; on a logarithmic axis their zero and their one would be nowhere."""
RANGES = (((0.01, 0.99), 1.0), ((0.25, 0.75), 5.0))
"""Quantiles from and to, and how thick the line between them is."""
WIDTH_INCHES = 10.0


def plot(result: Result, directory: Path) -> list[Path]:
    """Draw the result; the files, of which there are none without matplotlib, which is said."""
    try:
        import matplotlib  # type: ignore[import-not-found, unused-ignore]
    except ModuleNotFoundError:
        print("note: no plot, matplotlib is not installed: pip install matplotlib")
        return []
    matplotlib.use("Agg")
    directory.mkdir(parents=True, exist_ok=True)
    files = [_draw_question(result, *question, directory) for question in questions(result)]
    if result.series:
        files.append(_draw_series(result, directory))
    if result.stacks:
        files.append(_draw_stacks(result, directory))
    return files


def questions(result: Result) -> list[tuple[str, str]]:
    """(metric, unit) in the order in which they were measured."""
    return list(dict.fromkeys((row.metric, row.unit) for row in result.rows))


def file_name(result: Result, metric: str, unit: str) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", f"{metric} {unit.replace('%', 'percent').replace('/', ' per ')}".lower())
    return f"{result.name}-{words.strip('-')}.png"


def _draw_question(result: Result, metric: str, unit: str, directory: Path) -> Path:
    from matplotlib import pyplot  # type: ignore[import-not-found, unused-ignore]

    rows = [row for row in result.rows if (row.metric, row.unit) == (metric, unit)]
    found = {(each.case, each.metric): each for each in result.distributions}
    figure, panel = pyplot.subplots(figsize=(WIDTH_INCHES, 1.4 + 0.34 * len(rows)))
    for place, row in enumerate(rows):
        _draw_row(panel, place, row, found.get((row.case, row.metric)))
    panel.set_yticks(range(len(rows)), [f"{row.case} (n = {row.n})" for row in rows])
    panel.set_ylim(len(rows) - 0.5, -0.5)  # the first case is at the top
    if unit not in LINEAR and all(row.least > 0 for row in rows):
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:g}")
    else:
        panel.set_xlim(left=min(0, *(row.least for row in rows)))
    panel.set_xlabel(f"{unit}: dot p50; thick line p25 to p75, thin line p1 to p99; cross p99; bar least to most")
    panel.set_title(f"{result.name}: {metric}")
    panel.grid(axis="x", which="both", alpha=0.25)
    return _saved(figure, directory / file_name(result, metric, unit))


def _draw_row(panel: Any, place: int, row: Row, distribution: Distribution | None) -> None:
    if distribution is None:
        panel.plot([row.least, row.most], [place, place], color="tab:gray", linewidth=1, marker="|")
    else:
        for (low, high), thickness in RANGES:
            ends = [distribution.at(low), distribution.at(high)]
            panel.plot(ends, [place, place], color="tab:blue", linewidth=thickness, solid_capstyle="butt")
    panel.plot([row.p50], [place], color="black", marker="o", markersize=5)
    if row.p99 is not None:
        panel.plot([row.p99], [place], color="tab:red", marker="x", markersize=6)


def _draw_series(result: Result, directory: Path) -> Path:
    """The distributions as CDFs (SOCK, Fig. 20)."""
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(WIDTH_INCHES, 6))
    for case, latencies in result.series.items():
        panel.plot(latencies, _shares(latencies), label=case)
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter("{x:g}")
    panel.set_xlabel("latency, ms")
    panel.set_ylabel("share of requests that took no longer")
    panel.set_title(f"{result.name}: latency")
    panel.grid(alpha=0.25)
    panel.legend(fontsize="small")
    return _saved(figure, directory / f"{result.name}-cdf.png")


def _draw_stacks(result: Result, directory: Path) -> Path:
    """What each case's time consists of, as shares of it (Jain et al., Figs. 6 and 7); its whole time stands beside the bar."""
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(WIDTH_INCHES, 1.8 + 0.34 * len(result.stacks)))
    names = list(dict.fromkeys(name for parts in result.stacks.values() for name in parts))
    colors = {name: pyplot.get_cmap("tab20")(number % 20) for number, name in enumerate(names)}
    drawn: set[str] = set()
    for place, parts in enumerate(result.stacks.values()):
        whole, left = sum(parts.values()), 0.0
        for name, ms in parts.items():
            label = "" if name in drawn else name
            panel.barh(place, 100 * ms / whole, left=left, color=colors[name], label=label)
            drawn.add(name)
            left += 100 * ms / whole
        panel.text(left + 0.5, place, f"{whole:.3g} ms", va="center", fontsize="small")
    panel.set_yticks(range(len(result.stacks)), list(result.stacks))
    panel.invert_yaxis()  # the first case is at the top
    panel.set_xlim(0, 115)
    panel.set_xlabel("% of the time, by medians")
    panel.set_title(f"{result.name}: where the time goes")
    panel.legend(fontsize="small", ncols=6, loc="upper center", bbox_to_anchor=(0.5, -0.08 - 0.8 / len(result.stacks)))
    return _saved(figure, directory / f"{result.name}-parts.png")


def _shares(ordered: Sequence[float]) -> list[float]:
    return [index / max(1, len(ordered) - 1) for index in range(len(ordered))]


def _saved(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
