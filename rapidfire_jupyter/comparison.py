"""Runs side by side: at the same fraction of their schedules, on the same rows, ties kept.

Everything here is a pure function of runs and their logged rows. Scores are always turned so that
less is better, and a value that is not finite is the worst there is.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rapidfire_jupyter.measures import Measures
from rapidfire_jupyter.metric import Mode as Mode
from rapidfire_jupyter.metric import lower_is_better as lower_is_better
from rapidfire_jupyter.state import ACTIVE, Run, State

Row = Mapping[str, Any]  # Any: numbers
Rows = Mapping[int, Sequence[Row]]

NOISE = 0.005  # relative spread of repeated runs that counts as a tie, unless it was measured
_SEGMENTS = 8  # of a chunk, in which training losses of two runs are paired
_CHUNK = 0.125  # share of the schedule that a chunk is, of runs whose chunks are not known
_CLOSE = 1e-9


def pick_metric(rows: Rows, metric: str | None = None) -> str:
    """The metric that is asked for; without one eval_loss, or loss where nothing is evaluated."""
    if metric is not None:
        return metric
    evaluated = any("eval_loss" in row for own in rows.values() for row in own)
    return "eval_loss" if evaluated else "loss"


def fraction(run: Run, step: float) -> float:
    """Share of a run's schedule that a step is; 0 before its length is known."""
    return step / run.total_steps if run.total_steps else 0.0


def progress(run: Run) -> float:
    """Share of its schedule that a run has trained; 1 if it is completed."""
    return 1.0 if run.status == "completed" else fraction(run, run.step)


def chunk_width(run: Run) -> float:
    """Share of a run's schedule that one of its chunks is."""
    return 1.0 / len(run.chunk_ends) if run.chunk_ends else _CHUNK


def barrier(run: Run, share: float) -> float:
    """The fraction at the chunk end of a run that is nearest to a share of its schedule."""
    early = share - chunk_width(run) / 2 + _CLOSE
    ends = (fraction(run, end) for end in run.chunk_ends)
    return next((end for end in ends if end >= early), 1.0)


def reached(run: Run, share: float) -> bool:
    """Whether a run is at or past the barrier of a share of its schedule."""
    return bool(run.total_steps) and progress(run) >= barrier(run, share) - _CLOSE


def warm_up(run: Run, rows: Sequence[Row]) -> float:
    """Share of the schedule in which the learning rate rises, by the config or the logged rates."""
    given = run.config.get("training_args.warmup_steps") or 0
    if isinstance(given, int | float) and given > 0:
        return float(given) if given < 1 else fraction(run, given)
    rates = [(row["step"], row["learning_rate"]) for row in rows if "learning_rate" in row]
    if not rates:
        return 0.0
    peak = max(rate for _, rate in rates)
    at = next(step for step, rate in rates if rate >= peak)
    return fraction(run, at) if rates[0][1] < 0.9 * peak else 0.0


def learning_rate(run: Run, rows: Sequence[Row]) -> float | None:
    """The peak learning rate of a run: its config's, else the highest logged; None if unknown."""
    given = run.config.get("training_args.learning_rate")
    if isinstance(given, int | float) and given > 0:
        return float(given)
    return max((row["learning_rate"] for row in rows if row.get("learning_rate")), default=None)


def score_at(
    run: Run, rows: Sequence[Row], metric: str, at: float, mode: Mode | None = None
) -> float | None:
    """How a run stood at a fraction of its schedule; less is better.

    A training metric is its mean over the chunk that ends there, an evaluated one its newest value
    in that chunk.

    Returns:
        The score, infinite if a value is not finite; None if there is none in that chunk.
    """
    total = run.total_steps or 0
    low, high = (at - chunk_width(run) + _CLOSE) * total, (at + _CLOSE) * total
    first = bisect_right(rows, low, key=_step)
    last = bisect_right(rows, high, lo=first, key=_step)
    values = [float(row[metric]) for row in rows[first:last] if metric in row]
    if not values:
        return None
    value = values[-1] if metric.startswith("eval_") else fmean(values)
    if not math.isfinite(value):
        return math.inf
    return value if lower_is_better(metric, mode) else -value


def newest_score(
    run: Run, rows: Sequence[Row], metric: str, mode: Mode | None = None
) -> tuple[float, float] | None:
    """The newest chunk end with a score: its fraction and the score; None before there is one."""
    ends = [fraction(run, end) for end in run.chunk_ends if end <= run.step]
    for at in reversed(ends):
        score = score_at(run, rows, metric, at, mode)
        if score is not None:
            return at, score
    return None


def _step(row: Row) -> float:
    return float(row["step"])


def chunk_scores(
    runs: Iterable[Run], rows: Rows, metric: str, mode: Mode | None = None
) -> dict[int, dict[float, float]]:
    """Of each run the scores at its chunk ends so far, by fraction of its schedule."""
    found: dict[int, dict[float, float]] = {}
    for run in runs:
        ends = [fraction(run, end) for end in run.chunk_ends if end <= run.step]
        scores = ((at, score_at(run, rows.get(run.id, ()), metric, at, mode)) for at in ends)
        found[run.id] = {at: score for at, score in scores if score is not None}
    return found


def deviation(values: Sequence[float]) -> float:
    """Standard deviation of a sample of two or more; as `statistics.stdev`, but fast."""
    mean = fmean(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


@dataclass(frozen=True)
class Contrast:
    """One run against another at the same fraction.

    Attributes:
        difference: Positive if the first is worse.
        error: Standard error of it, from paired differences; 0 if there are fewer than three.
        scale: Size of the two scores, which a relative noise refers to.
        pairs: How many differences the error was taken from.
    """

    difference: float
    error: float
    scale: float
    pairs: int


def contrast(
    first: Run,
    second: Run,
    rows: Rows,
    metric: str,
    at: float,
    *,
    mode: Mode | None = None,
    measures: Measures | None = None,
) -> Contrast | None:
    """Compare two runs at the barrier of a share of their schedules; None if one has no score.

    Pairs are losses of the same eval rows where they are known, else mean training losses of the
    same eighths of the chunk, which are of the same training rows.
    """
    places = barrier(first, at), barrier(second, at)
    mine = score_at(first, rows.get(first.id, ()), metric, places[0], mode)
    other = score_at(second, rows.get(second.id, ()), metric, places[1], mode)
    if mine is None or other is None:
        return None
    if math.isinf(mine) or math.isinf(other):
        worse = 0.0 if mine == other else (math.inf if math.isinf(mine) else -math.inf)
        return Contrast(worse, 0.0, 0.0, 0)
    pairs = []
    if metric in ("loss", "eval_loss"):
        pairs = _example_pairs(first, second, places, measures) if metric == "eval_loss" else []
        pairs = pairs or _segment_pairs(first, second, rows, places)
    error = deviation(pairs) / math.sqrt(len(pairs)) if len(pairs) >= 3 else 0.0
    return Contrast(mine - other, error, (abs(mine) + abs(other)) / 2, len(pairs))


def is_tie(one: Contrast, noise: float = NOISE, certainty: float = 1.64) -> bool:
    """Whether a contrast is within the noise floor or within its own error.

    Args:
        one: The contrast.
        noise: Relative spread of repeated runs.
        certainty: Standard errors that a difference must exceed.
    """
    return abs(one.difference) <= max(noise * one.scale, certainty * one.error)


def _example_pairs(
    first: Run, second: Run, places: tuple[float, float], measures: Measures | None
) -> list[float]:
    known = measures.examples if measures is not None else {}
    steps = [round(p * (r.total_steps or 0)) for p, r in zip(places, (first, second), strict=True)]
    mine, other = known.get((first.id, steps[0]), ()), known.get((second.id, steps[1]), ())
    if len(mine) != len(other):
        return []
    pairs = [a - b for a, b in zip(mine, other, strict=True)]
    return [pair for pair in pairs if math.isfinite(pair)]


def _segment_pairs(first: Run, second: Run, rows: Rows, places: tuple[float, float]) -> list[float]:
    mine, other = (
        _segments(run, rows.get(run.id, ()), at)
        for run, at in zip((first, second), places, strict=True)
    )
    return [mine[i] - other[i] for i in mine if i in other]


def _segments(run: Run, rows: Sequence[Row], at: float) -> dict[int, float]:
    """Mean training loss in each segment of the chunk that ends at a fraction."""
    width, total = chunk_width(run), run.total_steps or 0
    first = bisect_right(rows, (at - width + _CLOSE) * total, key=_step)
    last = bisect_right(rows, (at + _CLOSE) * total, lo=first, key=_step)
    found: dict[int, list[float]] = {}
    for row in rows[first:last]:
        place = (fraction(run, row["step"]) - at) / width + 1 - _CLOSE
        if "loss" in row and math.isfinite(row["loss"]):
            found.setdefault(int(place * _SEGMENTS), []).append(row["loss"])
    return {i: fmean(values) for i, values in found.items()}


def cohort(state: State, share: float) -> list[Run] | None:
    """Runs that are compared at a share of the schedule; None while one has yet to get there.

    Those that are active or completed count; what was stopped, has failed or was deleted is not
    waited for. A clone that is behind is not waited for either: it is judged when it comes.
    """
    alive = [r for r in state.runs.values() if r.status in (*ACTIVE, "completed")]
    if any(r.parent is None and not reached(r, share) for r in alive):
        return None
    return [r for r in alive if reached(r, share)]


def same_fraction(runs: Sequence[Run]) -> float:
    """The largest fraction that all of these runs have reached at a chunk end."""
    places = []
    for run in runs:
        ends = [fraction(run, e) for e in run.chunk_ends if e <= run.step]
        places.append(1.0 if run.status == "completed" else max(ends, default=0.0))
    return min(places, default=0.0)
