"""What goes wrong as a run learns, seen in its logged rows: settings of monitors, how they look.

Pure functions. A monitor gives one alert for each episode in the rows so far.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from rapidfire_jupyter.alerts import (
    Alert,
    boosting,
    clipping,
    episodes,
    other_rate,
    regularised,
    stopping,
)
from rapidfire_jupyter.comparison import Row, deviation, fraction, learning_rate, warm_up
from rapidfire_jupyter.state import Run

# Trainers whose loss is no measure of progress: it is about zero by construction.
_NO_PROGRESS = ("GRPO", "RLOO", "OnlineDPO")
_RISE = 0.02  # a loss that rises by this much is no plateau


@dataclass(frozen=True)
class NonFinite:
    """The loss is NaN or infinite: weights are lost. The run itself has ended at that step."""

    kind: str = "non-finite"


@dataclass(frozen=True)
class Spike:
    """The training loss jumps far above what it was.

    Attributes:
        sigmas: Robust standard deviations of the logarithm of the loss.
        least: Relative rise over the median below which nothing is a spike.
        window: Rows that it is compared with; also how long an episode lasts after its last spike.
        after: Rows before the first one that can be one.
    """

    sigmas: float = 8.0
    least: float = 0.35
    window: int = 32
    after: int = 16
    kind: str = "spike"


@dataclass(frozen=True)
class Deviation:
    """The training loss varies from row to row far more than it did.

    Attributes:
        beta: Factor between the typical jump of a window and that of the windows before.
        least: Typical jump relative to the loss, below which there is no alert.
        window: Rows; two windows are waited for.
    """

    beta: float = 3.0
    least: float = 0.05
    window: int = 24
    kind: str = "deviation"


@dataclass(frozen=True)
class Plateau:
    """The loss has stopped falling while the learning rate is still high.

    Attributes:
        alpha: Relative improvement of the training loss over the window, below which it surely is.
        eval_alpha: The same of eval_loss, by the line through the window, if its noise allows.
        window: Share of the schedule.
        rate: Share of the peak learning rate under which a flat curve is as it should be.
        rows: Rows in each half of the window, where only the training loss can be looked at.
    """

    alpha: float = 0.005
    eval_alpha: float = 0.002
    window: float = 0.375
    rate: float = 0.5
    rows: int = 20
    kind: str = "plateau"


@dataclass(frozen=True)
class Overfitting:
    """The training loss falls while the evaluation loss rises.

    Attributes:
        evals: Evaluations in a row that must be higher than the one before.
        rise: Relative rise over the best evaluation.
    """

    evals: int = 3
    rise: float = 0.02
    kind: str = "overfitting"


@dataclass(frozen=True)
class EmptyBatches:
    """Steps with a loss of exactly 0: no token of their rows is trained on."""

    kind: str = "empty batches"


RowMonitor = NonFinite | Spike | Deviation | Plateau | Overfitting | EmptyBatches


def find(one: RowMonitor, run: Run, rows: Sequence[Row]) -> list[Alert]:
    """The episodes of one monitor in one run's rows."""
    if isinstance(one, NonFinite):
        return _non_finite(one, run, rows)
    if run.trainer_type in _NO_PROGRESS:
        return []
    if isinstance(one, Spike):
        return _spike(one, run, rows)
    if isinstance(one, Deviation):
        return _deviation(one, run, rows)
    if isinstance(one, Plateau):
        return _plateau(one, run, rows)
    if isinstance(one, Overfitting):
        return _overfitting(one, run, rows)
    return _empty(one, run, rows)


def _met(run: Run, rows: Sequence[Row], place: int) -> str:
    """The rows that a run met between two logged losses, counted from 1, as words."""
    args = "training_args."
    batch = int(run.config.get(args + "per_device_train_batch_size") or 8)
    batch *= int(run.config.get(args + "gradient_accumulation_steps") or 1)
    before = [row["step"] for row in rows[:place] if "loss" in row]
    first = before[-1] if before else 0
    return f"rows {first * batch + 1} to {rows[place]['step'] * batch} in the order it met them"


def _non_finite(one: NonFinite, run: Run, rows: Sequence[Row]) -> list[Alert]:
    found: list[Alert] = []
    for metric in ("loss", "eval_loss"):
        places = [i for i, row in enumerate(rows) if metric in row]
        flags = [(n, not math.isfinite(rows[i][metric])) for n, i in enumerate(places)]
        for start in episodes(flags):
            place = places[start]
            row = rows[place]
            text, step = f"{metric} is {row[metric]} at step {row['step']}", row["step"]
            if metric == "eval_loss":
                text += "; eval rows may have no token that counts"
                found.append(Alert(one.kind, run.id, step, text, "warning", (), step))
                continue
            # The loss before it was finite, so the weights of the step before that were.
            kept = 0 < (run.checkpoint_step or 0) <= step - 2
            text += f" ({_met(run, rows, place)}); its weights are lost"
            text += f" since its checkpoint of step {run.checkpoint_step}" if kept else ""
            again = (*other_rate(run, rows, 1 / 3, warm=kept), *clipping(run, warm=kept))
            remedies = (*stopping(run), *again)
            alert = Alert(one.kind, run.id, step, text, "error", remedies, step)
            found.append(alert)
    return found[:1] if found and found[0].level == "error" else found


def _losses(rows: Sequence[Row]) -> list[tuple[int, float]]:
    """Places and values of finite, positive training losses."""
    return [
        (i, row["loss"])
        for i, row in enumerate(rows)
        if "loss" in row and math.isfinite(row["loss"]) and row["loss"] > 0
    ]


def _spike(one: Spike, run: Run, rows: Sequence[Row]) -> list[Alert]:
    known = _losses(rows)
    logs = [math.log(loss) for _, loss in known]
    flags = []
    for n in range(one.after, len(known)):
        # Most rows are ruled out by the cheap test.
        before = logs[max(0, n - one.window) : n]
        if logs[n] - fmean(before) < math.log1p(one.least) / 2:
            continue
        middle = median(before)
        spread = 1.4826 * median(abs(value - middle) for value in before)
        above = logs[n] - middle
        flags.append((n, above > max(one.sigmas * spread, math.log1p(one.least))))
    found = []
    for start in episodes(flags, one.window):
        place, loss = known[start]
        usual = math.exp(median(logs[max(0, start - one.window) : start]))
        step = rows[place]["step"]
        text = f"loss {loss:.4g} at step {step}, {usual:.4g} before ({_met(run, rows, place)})"
        remedies = (*other_rate(run, rows, 0.5, warm=True), *clipping(run, warm=True))
        found.append(Alert(one.kind, run.id, step, text, "warning", remedies, step))
    return found


def _deviation(one: Deviation, run: Run, rows: Sequence[Row]) -> list[Alert]:
    known = _losses(rows)
    jumps: list[float] = []
    flags = []
    for n in range(len(known) // one.window):
        values = [loss for _, loss in known[n * one.window : (n + 1) * one.window]]
        jump = median(abs(b - a) for a, b in pairwise(values))
        if len(jumps) >= 2:
            wild = jump > one.beta * median(jumps) and jump > one.least * fmean(values)
            flags.append((n, wild))
        jumps.append(jump)
    found = []
    for n in episodes(flags):
        step = rows[known[(n + 1) * one.window - 1][0]]["step"]
        text = (
            f"loss varies by {jumps[n]:.3g} from row to row up to step {step}, by "
            f"{median(jumps[:n]):.3g} before"
        )
        remedies = (*other_rate(run, rows, 0.5, warm=True), *clipping(run, warm=True))
        found.append(Alert(one.kind, run.id, step, text, "warning", remedies, step))
    return found


def _plateau(one: Plateau, run: Run, rows: Sequence[Row]) -> list[Alert]:
    start, peak = warm_up(run, rows), learning_rate(run, rows)
    evaluated = any("eval_loss" in row for row in rows)
    flags, texts = [], {}
    for n, end in enumerate(run.chunk_ends):
        at = fraction(run, end)
        if end > run.step or at - one.window < start or at >= 1:
            continue
        inside = [r for r in rows if at - one.window <= fraction(run, r["step"]) <= at]
        rates = [r["learning_rate"] for r in inside if "learning_rate" in r]
        if rates and peak and rates[-1] < one.rate * peak:
            continue
        metric = "eval_loss" if evaluated else "loss"
        values = [r[metric] for r in inside if metric in r and math.isfinite(r[metric])]
        if evaluated:
            known = [r[metric] for r in rows if metric in r and r["step"] <= end]
            known = [value for value in known if math.isfinite(value)]
            gain, flat = _even(values, known[-len(values) - 1 :], one.eval_alpha)
        else:
            gain = _certain_gain(values, one.rows)
            flat = gain is not None and -_RISE < gain < one.alpha
        flags.append((n, flat))
        texts[n] = (
            f"{metric} improved by {100 * (gain or 0):.2g} % over the last "
            f"{100 * one.window:.0f} % of its schedule, up to step {end}"
        )
    return [
        Alert(
            one.kind,
            run.id,
            run.chunk_ends[n],
            texts[n],
            "info",
            (
                *boosting(run),
                *other_rate(run, rows, 3.0, warm=True),
                *other_rate(run, rows, 1 / 3, warm=True),
            ),
            run.chunk_ends[n],
        )
        for n in episodes(flags)
    ]


def _even(
    values: Sequence[float], known: Sequence[float], alpha: float
) -> tuple[float | None, bool]:
    """The relative improvement over evaluations by their line, and whether they surely are flat.

    An equivalence test: flat is what improves by less than `alpha`, if the 90 % interval of the
    improvement lies within what would be a rise or a fall. Where evaluations swing by more than
    that, as at a high learning rate, nothing is said. Their noise is taken from second differences,
    which a trend does not touch, by the median, which a bend at the start does not.

    Args:
        known: The same evaluations with the one before them.
    """
    count, level = len(values), abs(fmean(values)) if values else 0.0
    if count < 3 or not level:
        return None, False
    middle, squares = (count - 1) / 2, count * (count * count - 1) / 12
    slope = sum((i - middle) * value for i, value in enumerate(values)) / squares
    gain = -slope * (count - 1) / level
    bends = [abs(a - 2 * b + c) for a, b, c in zip(known, known[1:], known[2:], strict=False)]
    noise = 1.4826 * median(bends) / math.sqrt(6) / level
    error = noise * (count - 1) / math.sqrt(squares)
    return gain, gain < alpha and abs(gain) + 1.64 * error < _RISE


def _certain_gain(values: Sequence[float], least: int) -> float | None:
    """The most that the second half may be better than the first, relative; 95 % one-sided."""
    half = len(values) // 2
    if half < least:
        return None
    first, second = values[:half], values[half:]
    error = math.sqrt(deviation(first) ** 2 / half + deviation(second) ** 2 / len(second))
    return (fmean(first) - fmean(second) + 1.64 * error) / abs(fmean(first) or 1.0)


def _overfitting(one: Overfitting, run: Run, rows: Sequence[Row]) -> list[Alert]:
    places = [i for i, row in enumerate(rows) if math.isfinite(row.get("eval_loss", math.inf))]
    evals = [rows[i]["eval_loss"] for i in places]
    train = []
    for before, place in zip([0, *places], places, strict=False):
        losses = [loss for _, loss in _losses(rows[before : place + 1])]
        train.append(fmean(losses) if losses else math.nan)
    flags = []
    for n in range(one.evals, len(evals)):
        rising = all(evals[k] > evals[k - 1] for k in range(n - one.evals + 1, n + 1))
        high = evals[n] > (1 + one.rise) * min(evals[:n])
        flags.append((n, rising and high and train[n] < train[n - one.evals]))
    found = []
    for n in episodes(flags):
        step, best = rows[places[n]]["step"], min(range(n), key=lambda k: evals[k])
        text = (
            f"eval_loss rose from {evals[best]:.4g} at step {rows[places[best]]['step']} to "
            f"{evals[n]:.4g} at step {step}, while loss fell to {train[n]:.4g}"
        )
        remedies = (*regularised(run), *stopping(run))
        found.append(Alert(one.kind, run.id, step, text, "warning", remedies, step))
    return found


def _empty(one: EmptyBatches, run: Run, rows: Sequence[Row]) -> list[Alert]:
    known = [i for i, row in enumerate(rows) if "loss" in row]
    flags = [
        (n, rows[i]["loss"] == 0 and not rows[i].get("grad_norm", 0.0)) for n, i in enumerate(known)
    ]
    count = sum(flag for _, flag in flags)
    found = []
    for n in episodes(flags, len(flags))[:1]:
        step = rows[known[n]]["step"]
        text = (
            f"loss is exactly 0 at step {step} ({_met(run, rows, known[n])}) and in {count} logged "
            "rows in all: no token of them counts; prompts may fill max_length, or labels be masked"
        )
        found.append(Alert(one.kind, run.id, step, text, "warning", (), step))
    return found
