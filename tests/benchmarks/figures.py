"""Figures of a benchmark: ratios of paired measurements, their intervals, a table, and JSON."""

import argparse
import json
import random
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Attributes:
        value: The median, in `unit`.
        low, high: Its 95 % interval; equal to `value` where there was one measurement.
        target: What it should be at most; None where nothing was promised.
        note: What the reader must know to read the value.
    """

    name: str
    value: float
    low: float
    high: float
    unit: str
    target: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """Whether the interval lies under the target, over it, or across it."""
        if self.target is None:
            return ""
        if self.high <= self.target:
            return "ok"
        return "missed" if self.low > self.target else "unclear"


def ratio(name, ours, theirs, target=None, note=""):
    """The median of paired ratios ours / theirs, with its interval."""
    return median(name, [a / b for a, b in zip(ours, theirs, strict=True)], "x", target, note)


def median(name, values, unit, target=None, note=""):
    """The median of repeated measurements, with its interval."""
    low, high = interval(values)
    return Figure(name, statistics.median(values), low, high, unit, target, note)


def interval(values, resamples=4000, seed=0):
    """The bootstrap's 95 % interval of the median (percentile method)."""
    if len(values) == 1:
        return values[0], values[0]
    draw = random.Random(seed)
    medians = sorted(
        statistics.median(draw.choices(values, k=len(values))) for _ in range(resamples)
    )
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples) - 1]


def arguments(description):
    """The command line that all benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, help="add the figures to this JSON file")
    parser.add_argument("--rounds", type=int, help="repetitions of each side")
    parser.add_argument("--quick", action="store_true", help="the tiny model only, two rounds")
    return parser.parse_args()


def show(title, figures, json_path=None):
    """Print the table; add it to a JSON file if one is given."""
    print(f"\n{title}")
    width = max(len(f.name) for f in figures)
    for f in figures:
        span = "" if f.low == f.high else f"[{f.low:.3g}, {f.high:.3g}]"
        target = "" if f.target is None else f"target <= {f.target:g} {f.verdict}"
        row = f"  {f.name:<{width}}  {f.value:>8.3g} {f.unit:<6} {span:<18} {target:<24} {f.note}"
        print(row.rstrip(), flush=True)
    if json_path is not None:
        known = json.loads(json_path.read_text()) if json_path.exists() else {}
        known[title] = [{**asdict(f), "verdict": f.verdict} for f in figures]
        json_path.write_text(json.dumps(known, indent=1) + "\n")
