"""The noise floor: how far chance alone takes runs of one config with other seeds."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from rapidfire_jupyter.comparison import (
    NOISE,
    Mode,
    Rows,
    barrier,
    deviation,
    lower_is_better,
    pick_metric,
    same_fraction,
    score_at,
)
from rapidfire_jupyter.policies import Phases, Policy
from rapidfire_jupyter.state import Run, State

SEEDS = ("training_args.seed", "training_args.data_seed", "seed")
_NO_PART = (*SEEDS, "name")


@dataclass(frozen=True)
class Repeats:
    """Runs that differ by seed only, compared where all of them have come to.

    Attributes:
        at: Fraction of the schedule.
        values: Of the metric, by run; only finite ones.
        spread: Relative standard deviation; None with fewer than two values.
    """

    runs: tuple[int, ...]
    metric: str
    at: float
    values: dict[int, float]
    spread: float | None


def groups(state: State) -> list[list[Run]]:
    """Runs of each config that was trained with two seeds or more; no warm clones."""
    found: dict[str, list[Run]] = {}
    for run in state.runs.values():
        if run.status != "deleted" and not run.warm:
            found.setdefault(config_key(run), []).append(run)
    return [runs for runs in found.values() if len(runs) > 1]


def config_key(run: Run) -> str:
    """The same for runs that differ by seed only."""
    known = {k: v for k, v in run.config.items() if k not in _NO_PART and v is not None}
    return json.dumps(known, sort_keys=True)


def repeats(
    runs: Sequence[Run], rows: Rows, metric: str | None = None, mode: Mode | None = None
) -> Repeats:
    """How runs of one config differ, at the largest fraction that all that go on have reached."""
    metric = pick_metric(rows, metric)
    going = [r for r in runs if r.status not in ("stopped", "failed")] or list(runs)
    at = same_fraction(going)
    sign = 1.0 if lower_is_better(metric, mode) else -1.0
    scores = {
        r.id: score_at(r, rows.get(r.id, ()), metric, barrier(r, at), mode) for r in runs if at
    }
    values = {i: sign * s for i, s in scores.items() if s is not None and math.isfinite(s)}
    spread = None
    if len(values) > 1:
        level = fmean(values.values())
        spread = deviation(list(values.values())) / abs(level) if level else None
    return Repeats(tuple(r.id for r in runs), metric, at, values, spread)


def noise_floor(
    state: State, rows: Rows, metric: str | None = None, mode: Mode | None = None
) -> tuple[float, int]:
    """Relative standard deviation of repeated configs, pooled, and of how many runs.

    Returns:
        `NOISE` and 0 where no config was repeated yet.
    """
    found = [repeats(runs, rows, metric, mode) for runs in groups(state)]
    known = [(one.spread, len(one.values)) for one in found if one.spread is not None]
    freedom = sum(count - 1 for _, count in known)
    if not freedom:
        return NOISE, 0
    pooled = math.sqrt(sum((count - 1) * spread**2 for spread, count in known) / freedom)
    return pooled, sum(count for _, count in known)


def calibrated(policies: Sequence[Policy], noise: float) -> tuple[Policy, ...]:
    """Policies that call a tie what repeated runs differ by, unless their noise was set."""
    return tuple(_calibrated(policy, noise) for policy in policies)


def _calibrated(policy: Any, noise: float) -> Any:
    """Any: a policy, of whichever kind."""
    if isinstance(policy, Phases):
        phases = [
            replace(p, rules=tuple(_calibrated(rule, noise) for rule in p.rules))
            for p in policy.phases
        ]
        return replace(policy, phases=tuple(phases))
    if getattr(policy, "noise", None) != NOISE:
        return policy
    return replace(policy, noise=noise)
