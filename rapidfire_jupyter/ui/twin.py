"""The static twin: what a saved notebook shows where no live view can be. HTML and SVG, no script.

It stays under 100 KB for 48 runs, and everything in it is escaped.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from rapidfire_jupyter.durations import duration
from rapidfire_jupyter.ui.colors import DARK, GREY, LIGHT, pens
from rapidfire_jupyter.ui.fold import Fold
from rapidfire_jupyter.ui.metrics import best_run, best_runs, columns, comparable, lower_is_better
from rapidfire_jupyter.ui.series import Axis, best_first, main_metrics, series, short
from rapidfire_jupyter.ui.svg import STYLE, Curve, chart
from rapidfire_jupyter.ui.texts import sendable
from rapidfire_jupyter.ui.view import Facts, differing, head

MOST_POINTS = 2_000  # of one chart
MOST_RUNS = 60  # in the table; the others are counted
MOST_COLUMNS = 8  # of hyperparameters
_TABLE_STYLE = (
    ".rf-t{border-collapse:collapse;font:12px system-ui,sans-serif;margin:8px 0}"
    ".rf-t td,.rf-t th{padding:2px 8px;text-align:right;border-bottom:1px solid #8883}"
    ".rf-t td:nth-child(2),.rf-t th:nth-child(2){text-align:left}.rf-t b{font-weight:700}"
)
_DARK_DOTS = "".join(f".rf-t .d{i}{{background:{color}!important}}" for i, color in enumerate(DARK))


def twin_html(fold: Fold, facts: Facts) -> str:
    """Final curves, the table, and the best configuration."""
    return sendable(
        f"<style>{STYLE}{_TABLE_STYLE}[data-jp-theme-light=false] {{{_DARK_DOTS}}}</style>"
        f"<p>{escape(summary(fold, facts))}</p>{charts(fold, main_metrics(fold))}"
        f"{table(fold)}{best_config(fold)}"
    )


def twin_text(fold: Fold, facts: Facts) -> str:
    """The same for a terminal: how it stands, and a line for each run."""
    lines = [summary(fold, facts)]
    metrics = main_metrics(fold)
    for run in fold.state.runs.values():
        if run.status != "deleted":
            last = fold.last.get(run.id, {})
            values = [f"{m} {last[m]:.4g}" for m in metrics if m in last]
            step = f"step {fold.step(run.id)}/{run.total_steps or '?'}"
            lines.append(f"  {run.id}  {run.status}  {step}  {'  '.join([*values, run.name])}")
    return sendable("\n".join(lines))


def summary(fold: Fold, facts: Facts) -> str:
    """The experiment in a line."""
    top = head(fold, facts, fold.last_time)
    counts = ", ".join(f"{n} {status}" for status, n in top["counts"].items())
    trained = f"; trained for {duration(top['elapsed_s'])}" if top["elapsed_s"] else ""
    return f"{facts.name}: {facts.status}; {counts or 'no runs yet'}{trained}"


def charts(fold: Fold, metrics: Sequence[str], x: Axis = "step") -> str:
    """A chart of each metric that some run has logged."""
    colored = _pens(fold)
    parts = []
    for metric in metrics:
        found = series(fold, metric, x)
        most = max(12, min(60, MOST_POINTS // len(found)))
        curves = [
            Curve(
                f"{s.run}: {s.name}",
                list(zip(s.x, s.y, strict=True)),
                colored.get(s.run),
                s.dashed,
                str(s.run),
            )
            for s in found
        ]
        parts.append(f"<figure style='margin:8px 0'><figcaption>{escape(metric)}</figcaption>")
        parts.append(f"{chart(metric, curves, x, most)}</figure>")
    return "".join(parts)


def _pens(fold: Fold) -> dict[int, int]:
    runs = [run.id for run in fold.state.runs.values() if run.status != "deleted"]
    metrics = main_metrics(fold)
    ranked: list[int] = []
    if metrics and len(runs) > len(LIGHT):
        ranked = [s.run for s in best_first(series(fold, metrics[-1]), metrics[-1])]
    return pens(runs, ranked)


def table(fold: Fold, most: int = MOST_RUNS) -> str:
    """A row per run, the best value of each metric in bold."""
    runs = [run for run in fold.state.runs.values() if run.status != "deleted"]
    if not runs:
        return ""
    _, varying = differing(fold.state)
    varying = varying[:MOST_COLUMNS]
    metrics = columns(fold.metrics) or main_metrics(fold)
    live = {run.id: fold.last.get(run.id, {}) for run in runs}
    best = best_runs(live, metrics, comparable(runs))
    colored = _pens(fold)
    titles = ["run", "name", "status", "step", *map(short, varying), *metrics]
    lines = ["".join(f"<th>{escape(title)}</th>" for title in titles)]
    for run in runs[:most]:
        step = f"{fold.step(run.id)}/{run.total_steps or '?'}"
        cells = [_dot(colored.get(run.id)) + str(run.id), escape(run.name[:200]), run.status, step]
        cells += [escape(told(run.config.get(name))) for name in varying]
        for metric in metrics:
            value = live[run.id].get(metric)
            text = "" if value is None else escape(number(value))
            cells.append(f"<b>{text}</b>" if best.get(metric) == run.id else text)
        lines.append("".join(f"<td>{cell}</td>" for cell in cells))
        if run.error:
            error = escape(run.error[:300])
            lines.append(f'<td></td><td colspan="{len(titles) - 1}">{error}</td>')
    more = f"<p>and {len(runs) - most} more runs</p>" if len(runs) > most else ""
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<table class="rf-t">{body}</table>{more}'


def _dot(pen: int | None) -> str:
    color = GREY if pen is None else LIGHT[pen]
    return (
        f'<span class="d{"" if pen is None else pen}" style="display:inline-block;width:10px;'
        f'height:10px;border-radius:5px;margin-right:6px;background:{color}"></span>'
    )


def best_config(fold: Fold) -> str:
    """The hyperparameters of the best run, closed until one opens them."""
    metrics = main_metrics(fold)
    among = comparable(fold.state.runs.values())
    live = {i: v for i, v in fold.last.items() if i in among}
    best = best_run(live, metrics[-1]) if metrics else None
    if best is None:
        return ""
    run, metric = fold.state.runs[best], metrics[-1]
    kind = "lowest" if lower_is_better(metric) else "highest"
    title = f"run {best} has the {kind} {metric}, {number(fold.last[best][metric])}"
    values = "\n".join(f"{name} = {told(value)}" for name, value in run.config.items())
    return f"<details><summary>{escape(title)}</summary><pre>{escape(values)}</pre></details>"


def number(value: float) -> str:
    """A logged value in four digits."""
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def told(value: Any) -> str:  # Any: JSON values
    """A hyperparameter as text; a function by its name."""
    if isinstance(value, dict) and "callable" in value:
        return str(value["callable"]).rpartition(".")[2]
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(f"[{told(one)}]" if isinstance(one, list) else told(one) for one in value)
    return "" if value is None else str(value)[:300]
