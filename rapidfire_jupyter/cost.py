"""What an experiment costs: runs x steps x measured seconds, known after the first slices.

Once nothing is left to train it is what it has cost.
"""

from dataclasses import dataclass

from rapidfire_jupyter.durations import duration
from rapidfire_jupyter.measures import Measures
from rapidfire_jupyter.state import ACTIVE, State

LEAST_TOLD = 0.005  # share of the time


@dataclass(frozen=True)
class Cost:
    """Training of all runs that are not deleted: of active ones to their ends, of others so far.

    Attributes:
        runs: How many.
        steps: Of all of them; runs that are not prepared yet count as the others do on average, and
            warm clones from where they began.
        step_seconds: Mean time of a step, evaluations included.
        left_seconds: What the active runs still need.
        moving: Share of the time spent moving weights and states to and from the device.
    """

    runs: int
    steps: int
    step_seconds: float
    left_seconds: float
    moving: float = 0.0


def preview(state: State, measures: Measures) -> Cost | None:
    """The cost as far as it is known; None before there is a slice with steps.

    A run that has not trained yet is taken to be as fast, per step, as the others on average.
    """
    moving = 0.0
    seconds: dict[int, float] = {}
    steps: dict[int, int] = {}
    for one in measures.slices:
        if one.run in state.runs:
            seconds[one.run] = seconds.get(one.run, 0.0) + one.seconds
            steps[one.run] = steps.get(one.run, 0) + one.steps
            moving += one.moving_seconds or 0.0
    steps = {run: count for run, count in steps.items() if count}
    lengths = [run.total_steps for run in state.runs.values() if run.total_steps]
    if not steps or not lengths:
        return None
    usual = sum(seconds[i] / steps[i] for i in steps) / len(steps)
    typical = sum(lengths) / len(lengths)
    whole = left = spent = 0.0
    runs = [run for run in state.runs.values() if run.status != "deleted"]
    for run in runs:
        begun = (run.clone_step or 0) if run.warm else 0  # what it was cloned with is its parent's
        total = (run.total_steps or typical) if run.status in ACTIVE else run.step
        pace = seconds[run.id] / steps[run.id] if run.id in steps else usual
        whole += max(0.0, total - begun)
        spent += max(0.0, total - begun) * pace
        left += max(0.0, total - run.step) * pace if run.status in ACTIVE else 0.0
    if not whole:
        return None
    share = moving / max(sum(seconds.values()), 1e-9)
    return Cost(len(runs), round(whole), spent / whole, left, share)


def ahead(cost: Cost) -> str:
    """What it will cost, such as "48 runs x 72 steps x 0.031 s = 1 min 47 s, if no run ..."."""
    return f"{_product(cost)}{_moving(cost)}, if no run is stopped early"


def in_words(cost: Cost) -> str:
    """As of now, such as "48 runs x 72 steps x 0.031 s = 1 min 47 s, 59 s left"; or "so far"."""
    left = f", {duration(cost.left_seconds)} left" if cost.left_seconds else " so far"
    return f"{_product(cost)}{left}{_moving(cost)}"


def _product(cost: Cost) -> str:
    each = cost.steps / cost.runs
    return (
        f"{cost.runs} run{'' if cost.runs == 1 else 's'} x {each:.4g} steps x "
        f"{cost.step_seconds:.2g} s = {duration(cost.steps * cost.step_seconds)}"
    )


def _moving(cost: Cost) -> str:
    share = cost.moving if cost.moving >= LEAST_TOLD else 0.0
    return f", {100 * share:.0f} % of it to move weights and states" if share else ""
