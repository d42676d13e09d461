"""How runs stand: all of them in order, or two side by side. Pure functions, plain data out.

Runs that were stopped early are marked as partial, and never ranked as if they had finished.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rapidfire_jupyter.comparison import (
    NOISE,
    Contrast,
    Mode,
    Row,
    Rows,
    barrier,
    contrast,
    fraction,
    is_tie,
    lower_is_better,
    progress,
    same_fraction,
    score_at,
)
from rapidfire_jupyter.errors import ConfigError, OpError
from rapidfire_jupyter.measures import Measures
from rapidfire_jupyter.state import Run, State

At = Literal["end", "same_fraction"] | float


@dataclass(frozen=True)
class Place:
    """One run in a ranking.

    Attributes:
        rank: From 1; None if it cannot be ranked there.
        value: Of the metric, where runs are compared; None if there is none.
        progress: Share of its schedule that it trained.
        partial: It has not finished.
        tie: It cannot be told from the first by the noise floor or its own error.
        reason: Why it has no rank.
    """

    run: int
    name: str
    rank: int | None
    value: float | None
    progress: float
    partial: bool
    tie: bool
    reason: str = ""


@dataclass(frozen=True)
class Ranking:
    """Runs by a metric. `at` is the fraction of the schedule at which they are compared."""

    metric: str
    mode: Mode
    at: float
    places: tuple[Place, ...]

    @property
    def best(self) -> int | None:
        """The first run; None if none has a rank."""
        ranked = [place.run for place in self.places if place.rank == 1]
        return ranked[0] if ranked else None

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it. Any: JSON values."""
        return asdict(self)


def rank(
    state: State,
    rows: Rows,
    metric: str = "eval_loss",
    mode: Mode | None = None,
    at: At = "end",
    noise: float = NOISE,
    measures: Measures | None = None,
) -> Ranking:
    """Rank runs, at the end of training or all at the same fraction of their schedules.

    Args:
        state: Of the experiment; deleted runs are left out.
        rows: Logged rows by run.
        metric: A logged name.
        mode: Which way is better; None goes by the metric's name.
        at: "end" ranks finished runs only. "same_fraction" takes the largest fraction that all
            runs that are not stopped or failed have reached, and ranks those there, stopped ones
            too. A number is that fraction.
        noise: Relative difference that is a tie.
        measures: Losses of single eval rows, if they are known.

    Raises:
        OpError: No run has logged this metric, or none has trained as far.
    """
    runs = [run for run in state.runs.values() if run.status != "deleted"]
    check_logged(runs, rows, metric)
    place = where(runs, at)
    scores = scores_of(runs, rows, metric, mode, place)
    order = sorted(scores, key=lambda i: (scores[i], i))
    sign = 1.0 if lower_is_better(metric, mode) else -1.0
    found = []
    for number, i in enumerate(order, start=1):
        finite = math.isfinite(scores[i])
        against = _against(state.runs[i], state.runs[order[0]], rows, metric, place, mode, measures)
        tie = number > 1 and finite and against is not None and is_tie(against, noise)
        found.append(_place(state.runs[i], number if finite else None, sign * scores[i], tie))
    for run in runs:
        if run.id not in scores:
            known = score_at(run, rows.get(run.id, ()), metric, _own_end(run), mode)
            value = None if known is None else sign * known
            found.append(_place(run, None, value, False, _why_not(run, place)))
    return Ranking(metric, "min" if sign > 0 else "max", place, tuple(found))


def check_logged(runs: Sequence[Run], rows: Rows, metric: str) -> None:
    """Refuse a metric that no run has logged.

    Raises:
        OpError: With the names there are.
    """
    names = {name for run in runs for row in rows.get(run.id, ()) for name in row}
    if metric not in names:
        known = ", ".join(sorted(names - {"step", "epoch"})) or "nothing yet"
        raise OpError(f"no run has logged {metric!r}; logged: {known}")


def where(runs: Sequence[Run], at: At) -> float:
    """The fraction at which runs are compared, as `rank` takes it.

    Raises:
        ConfigError: It is none.
        OpError: It is out of range, or no chunk is trained yet.
    """
    if at == "end":
        return 1.0
    if at == "same_fraction":
        going = [r for r in runs if r.status not in ("stopped", "failed")]
        place = same_fraction(going or list(runs))
    else:
        try:
            place = float(at)
        except (TypeError, ValueError):
            raise ConfigError(
                f"at is 'end', 'same_fraction' or a fraction, got {at!r:.40}"
            ) from None
    if not 0 < place <= 1:
        raise OpError(
            f"runs are compared at a fraction over 0 and at most 1, got {place:g}; wait until each "
            "has trained a chunk, or give at="
        )
    return place


def scores_of(
    runs: Sequence[Run], rows: Rows, metric: str, mode: Mode | None, place: float
) -> dict[int, float]:
    """Scores, of which less is better, of runs that have one there; at 1 only of finished ones."""
    found = {}
    for run in runs:
        own = rows.get(run.id, ())
        if place < 1:
            score = score_at(run, own, metric, barrier(run, place), mode)
        elif run.status == "completed":
            score = _final_score(run, own, metric, mode)
        else:
            continue
        if score is not None:
            found[run.id] = score
    return found


def _final_score(run: Run, rows: Sequence[Row], metric: str, mode: Mode | None) -> float | None:
    """The score in the last chunk; if there is none, of the newest value."""
    score = score_at(run, rows, metric, _own_end(run), mode)
    values = [row for row in rows if metric in row]
    if score is None and values:
        score = score_at(run, values, metric, fraction(run, values[-1]["step"]), mode)
    return score


def _own_end(run: Run) -> float:
    """Where a run ended: a callback may end it early, and then it is completed."""
    return run.step / run.total_steps if run.total_steps else 0.0


def _place(run: Run, rank: int | None, value: float | None, tie: bool, reason: str = "") -> Place:
    partial = run.status != "completed"
    not_finite = value is not None and not math.isfinite(value)
    why = "its value is not finite" if rank is None and not_finite else reason
    shown = None if not_finite else value
    return Place(run.id, run.name, rank, shown, progress(run), partial, tie, why)


def _why_not(run: Run, place: float) -> str:
    if place >= 1 and run.status != "completed":
        return f"{run.status} at {100 * progress(run):.0f} % of its schedule: partial"
    if run.total_steps and progress(run) < place:
        return f"it has trained {100 * progress(run):.0f} % of its schedule"
    return "it has no value there"


def _against(
    run: Run,
    other: Run,
    rows: Rows,
    metric: str,
    place: float,
    mode: Mode | None,
    measures: Measures | None,
) -> Contrast | None:
    if place >= 1 and _own_end(run) < 1:
        return None
    return contrast(run, other, rows, metric, place, mode=mode, measures=measures)


# ---- two runs ----


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side.

    Attributes:
        differences: Hyperparameters that differ, with both values.
        at: Fraction of the schedule at which both are compared: the largest both have reached.
        values: Of both there.
        difference: Second minus first; `low` and `high` are 95 % bounds from paired differences,
            None if there are fewer than three pairs.
        better: Id of the better run; None if it is a tie.
        partial: Those of the two that have not finished.
        notes: What makes the comparison less than fair.
    """

    first: int
    second: int
    metric: str
    differences: tuple[tuple[str, Any, Any], ...]  # Any: JSON values
    at: float
    values: tuple[float, float]
    difference: float
    low: float | None
    high: float | None
    pairs: int
    better: int | None
    partial: tuple[int, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it. Any: JSON values."""
        return asdict(self)


def compare(
    state: State,
    rows: Rows,
    first: int,
    second: int,
    metric: str = "eval_loss",
    mode: Mode | None = None,
    noise: float = NOISE,
    measures: Measures | None = None,
) -> Comparison:
    """Compare two runs at the largest fraction of the schedule that both have reached.

    Raises:
        OpError: There is no such run, or no fraction at which both have a value.
    """
    for i in (first, second):
        if i not in state.runs:
            raise OpError(f"there is no run {i}; runs: {', '.join(map(str, state.runs))}")
    pair = state.runs[first], state.runs[second]
    check_logged(pair, rows, metric)
    at = same_fraction(pair)
    found = None
    while found is None and at > 0:
        found = contrast(*pair, rows, metric, at, mode=mode, measures=measures)
        at = at if found is not None else at - 1 / max(len(r.chunk_ends) or 8 for r in pair)
    scores = [score_at(r, rows.get(r.id, ()), metric, barrier(r, at), mode) for r in pair]
    if found is None or scores[0] is None or scores[1] is None:
        raise OpError(f"runs {first} and {second} have no {metric} at a same fraction yet; wait")
    sign = 1.0 if lower_is_better(metric, mode) else -1.0
    change = -sign * found.difference
    bound = 1.96 * found.error if found.pairs >= 3 else None
    tie = is_tie(found, noise, 1.96)
    return Comparison(
        first,
        second,
        metric,
        _differences(*pair),
        at,
        (sign * scores[0], sign * scores[1]),
        change,
        None if bound is None else change - bound,
        None if bound is None else change + bound,
        found.pairs,
        None if tie else (second if found.difference > 0 else first),
        tuple(r.id for r in pair if r.status != "completed"),
        tuple(_notes(*pair, metric)),
    )


def _differences(first: Run, second: Run) -> tuple[tuple[str, Any, Any], ...]:
    names = dict.fromkeys([*first.config, *second.config])
    both = ((name, first.config.get(name), second.config.get(name)) for name in names)
    return tuple(one for one in both if one[1] != one[2] and one[0] != "name")


def _notes(first: Run, second: Run, metric: str) -> list[str]:
    found = []
    if first.trainer_type != second.trainer_type and "loss" in metric:
        found.append(f"a {metric} of {first.trainer_type} and {second.trainer_type} differ in kind")
    if first.total_steps != second.total_steps:
        found.append(
            f"the same rows took {first.total_steps} and {second.total_steps} steps"
            if first.config.get("training_args.num_train_epochs")
            == second.config.get("training_args.num_train_epochs")
            else "they train on other numbers of rows; the fraction is of each one's own schedule"
        )
    if second.parent == first.id or first.parent == second.id:
        child = second if second.parent == first.id else first
        how = "warm" if child.warm else "cold"
        found.append(f"run {child.id} is a {how} clone of the other")
    return found
