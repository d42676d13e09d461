"""Curves: the logged rows of runs as points, thinned for the eye, packed for the browser.

Pure functions over plain points. What a block and its numbers are, `wire.py` says.
"""

import math
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from rapidfire_jupyter.ui.wire import Block

MOST_ROWS = 6_000  # of all runs together, in a snapshot
LEAST_ROWS = 100  # of each run, as long as MOST_ROWS allows it
MOST_NUMBERS = 36_000  # of all runs together: 144 KB; with the scripts less than 400 KB
_NO_METRICS = frozenset({"step", "epoch"})


class Point(NamedTuple):
    """One logged row. `time` in seconds since the experiment's first event."""

    step: float
    epoch: float
    time: float
    metrics: tuple[str, ...]
    values: tuple[float, ...]

    @property
    def evaluated(self) -> bool:
        """Whether it is of an evaluation, of which there are few."""
        return any(name.startswith("eval_") for name in self.metrics)


def point(row: Mapping[str, Any], time: float, steps_per_epoch: float | None) -> Point:
    """The point of a logged row; what is no number in it is left out. Any: numbers.

    Args:
        row: As the event has it.
        time: Seconds since the experiment's first event.
        steps_per_epoch: For rows that do not say their epoch.
    """
    names, values = [], []
    for name, value in row.items():
        if name not in _NO_METRICS and type(value) in (int, float):
            names.append(name)
            values.append(_float(value))
    step = row.get("step", 0)
    epoch = row.get("epoch")
    if epoch is None:
        epoch = step / steps_per_epoch if steps_per_epoch else 0.0
    return Point(float(step), float(epoch), time, tuple(names), tuple(values))


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an int of hundreds of digits
        return math.inf if value > 0 else -math.inf


def pack(run: int, points: Iterable[Point]) -> tuple[list[Block], bytes]:
    """Points of one run as blocks and their numbers, little-endian float32."""
    blocks: list[Block] = []
    numbers = array("f")
    for metrics, group in groupby(points, key=lambda p: p.metrics):
        count = 0
        for one in group:
            numbers.extend((one.step, one.epoch, one.time, *one.values))
            count += 1
        blocks.append({"run": run, "metrics": list(metrics), "n": count})
    if sys.byteorder == "big":
        numbers.byteswap()
    return blocks, numbers.tobytes()


def unpack(blocks: Sequence[Block], numbers: bytes) -> dict[int, list[Point]]:
    """The points by run that `pack` put into blocks, as a browser reads them."""
    values = array("f")
    values.frombytes(numbers)
    if sys.byteorder == "big":
        values.byteswap()
    found: dict[int, list[Point]] = {}
    at = 0
    for block in blocks:
        metrics, width = tuple(block["metrics"]), 3 + len(block["metrics"])
        for _ in range(block["n"]):
            step, epoch, time, *rest = values[at : at + width]
            found.setdefault(block["run"], []).append(
                Point(step, epoch, time, metrics, tuple(rest))
            )
            at += width
    return found


def quotas(
    rows: Mapping[int, int], widths: Mapping[int, float], share: float = 1.0
) -> dict[int, int]:
    """How many rows of each run a snapshot has, so that it stays small.

    What runs with few rows leave over goes to the others.

    Args:
        rows: Rows there are, by run.
        widths: Numbers in a row, by run.
        share: Of the usual size of a snapshot.
    """
    width = sum(rows[i] * widths[i] for i in rows) / max(1, sum(rows.values()))
    least = int(share * min(LEAST_ROWS, MOST_ROWS // max(1, len(rows))))
    most = share * min(MOST_ROWS, MOST_NUMBERS / max(1.0, width))
    left = max(int(most), least * len(rows))
    given: dict[int, int] = {}
    for place, run in enumerate(sorted(rows, key=lambda i: rows[i])):
        given[run] = min(rows[run], max(least, left // (len(rows) - place)))
        left -= given[run]
    return given


def thin_all(curves: Mapping[int, Sequence[Point]], share: float = 1.0) -> dict[int, list[Point]]:
    """Points of all runs, few enough for a snapshot, or for a share of one."""
    known = {run: points for run, points in curves.items() if points}
    rows = {run: len(points) for run, points in known.items()}
    widths = {run: 3.0 + len(points[-1].metrics) for run, points in known.items()}
    given = quotas(rows, widths, share)
    return {run: thin(points, given[run]) for run, points in known.items()}


def thin(points: Sequence[Point], most: int) -> list[Point]:
    """At most `most` points of one run, in order, looking as all of them would.

    Kept first are the ends, the extremes of each metric, and the rows of evaluations; then the
    lowest and the highest value of the first metric in each of even stretches.
    """
    if len(points) <= most:
        return list(points)
    kept = {0, len(points) - 1, *_extremes(points)}
    evaluated = [i for i, p in enumerate(points) if p.evaluated and i not in kept]
    kept.update(_evenly(evaluated, max(0, most - len(kept))))
    others = [i for i in range(len(points)) if i not in kept]
    kept.update(_lows_and_highs(points, others, max(0, most - len(kept))))
    return [points[i] for i in _evenly(sorted(kept), most)]


def _extremes(points: Sequence[Point]) -> set[int]:
    """Where each metric has its lowest and highest finite value."""
    low: dict[str, tuple[float, int]] = {}
    high: dict[str, tuple[float, int]] = {}
    for index, one in enumerate(points):
        for name, value in zip(one.metrics, one.values, strict=True):
            if not math.isfinite(value):
                continue
            if name not in low or value < low[name][0]:
                low[name] = value, index
            if name not in high or value > high[name][0]:
                high[name] = value, index
    return {index for _, index in (*low.values(), *high.values())}


def _evenly(items: Sequence[int], most: int) -> list[int]:
    if len(items) <= most:
        return list(items)
    if most < 2:
        return list(items[:most])
    return [items[round(k * (len(items) - 1) / (most - 1))] for k in range(most)]


def _lows_and_highs(points: Sequence[Point], places: Sequence[int], most: int) -> set[int]:
    """Two places of each stretch: where the first metric is lowest and highest.

    A value that is not finite counts as the highest: it is what a person must see.
    """
    stretches = max(1, most // 2)
    found: set[int] = set()
    for k in range(stretches if most else 0):
        part = places[k * len(places) // stretches : (k + 1) * len(places) // stretches]
        if not part:
            continue
        found.add(min(part, key=lambda i: _height(points[i])))
        if most > 1:
            found.add(max(part, key=lambda i: _height(points[i])))
    return found


def _height(one: Point) -> float:
    value = one.values[0] if one.values else 0.0
    return value if math.isfinite(value) else math.inf
