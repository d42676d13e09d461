"""One metric of all runs as lines to draw: the pure part of figures, reports and twins."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.ui.curves import Point
from rapidfire_jupyter.ui.fold import Fold
from rapidfire_jupyter.ui.metrics import by_use, lower_is_better, ranks
from rapidfire_jupyter.ui.view import differing

Axis = Literal["step", "epoch", "rows", "time"]
AXES: tuple[Axis, ...] = get_args(Axis)


@dataclass(frozen=True)
class Series:
    """A metric of one run. A warm clone's begins on its parent's point and is drawn dashed.

    Attributes:
        about: The run's differing hyperparameters, as text.
    """

    run: int
    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    dashed: bool
    about: str


def series(fold: Fold, metric: str, x: Axis = "step") -> list[Series]:
    """A metric of every run that has logged it and is not deleted.

    Args:
        fold: What the log says.
        metric: A logged name.
        x: "step", "epoch", "rows" seen, or "time" in seconds since the experiment's start.

    Raises:
        OpError: No run has logged the metric, or x is none of these.
    """
    if x not in AXES:
        raise OpError(f"x is one of {', '.join(AXES)}, got {x!r}")
    rows = fold.rows_per_epoch()
    if x == "rows" and rows is None:
        raise OpError("x='rows' needs a data set of known length; use x='step'")
    _, varying = differing(fold.state)
    found = []
    for run in fold.state.runs.values():
        points = list(_of(fold.curves.get(run.id, ()), metric))
        if run.status == "deleted" or not points:
            continue
        if run.warm and run.parent is not None and run.clone_step is not None:
            above = [p for p in _of(fold.curves.get(run.parent, ()), metric)]
            before = [p for p in above if p[0].step <= run.clone_step]
            points = before[-1:] + points
        about = ", ".join(f"{short(n)}={run.config.get(n)}" for n in varying)
        found.append(
            Series(
                run.id,
                run.name,
                tuple(_at(p, x, rows or 1.0) for p, _ in points),
                tuple(value for _, value in points),
                run.warm,
                about,
            )
        )
    if not found:
        known = ", ".join(fold.metrics) or "nothing yet"
        raise OpError(f"no run has logged {metric!r}; logged: {known}")
    return found


def _of(points: Iterable[Point], metric: str) -> Iterable[tuple[Point, float]]:
    for one in points:
        if metric in one.metrics:
            yield one, one.values[one.metrics.index(metric)]


def _at(one: Point, x: Axis, rows: float) -> float:
    return {"step": one.step, "epoch": one.epoch, "rows": one.epoch * rows, "time": one.time}[x]


def short(name: str) -> str:
    """A hyperparameter's name without the part that says where it is."""
    return name.removeprefix("training_args.").removeprefix("peft_config.")


def best_first(found: Iterable[Series], metric: str) -> list[Series]:
    """Series by their last value, the best first; NaN comes last."""
    sign = 1.0 if lower_is_better(metric) else -1.0

    def place(one: Series) -> tuple[bool, float, int]:
        last = one.y[-1]
        return math.isnan(last), 0.0 if math.isnan(last) else sign * last, one.run

    return sorted(found, key=place)


def main_metrics(fold: Fold) -> list[str]:
    """The one or two metrics to look at first: of training, and of evaluation."""
    known = [name for name in by_use(fold.metrics) if ranks(name)]
    evaluated = [name for name in known if name.startswith("eval_")]
    training = [name for name in known if name in ("reward", "loss")][:1]
    goal = f"eval_{training[0]}" if training else "eval_loss"
    evaluation = [goal] if goal in evaluated else evaluated[:1]
    return training + evaluation or known[:1]
