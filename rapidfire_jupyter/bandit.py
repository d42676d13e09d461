"""A bandit that learns which runs deserve more training time, and boosts them.

Each active run is an arm. What a chunk of it showed is how far it is ahead of its peers at the same
fraction, in their standard deviations; newer chunks count more. Thompson sampling (Thompson 1933)
gives each run a share in proportion to how often it comes out best among draws; the UCB rule (after
Auer et al. 2002) one in proportion to exp of its upper bound, mean and standard error. Runs are
boosted, none is stopped.
"""

import math
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Literal

from rapidfire_jupyter.comparison import (
    Mode,
    barrier,
    chunk_scores,
    deviation,
    pick_metric,
    warm_up,
)
from rapidfire_jupyter.decisions import Decision, Seen, ask, decided, note
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.ops import Op
from rapidfire_jupyter.state import ACTIVE, Run

_DRAWS = 400
_CHANGED = 1.25  # weights that differ by less than this factor are left alone


@dataclass(frozen=True)
class BanditBoost:
    """Settings of the bandit.

    Attributes:
        rule: "thompson" or "ucb".
        most: Largest weight; the smallest is its inverse.
        decay: What an observation counts one chunk later.
        explore: Standard deviation of one observation, in those of the peers: more, and shares
            differ less.
        after: Chunks that every run trains before shares differ.
    """

    rule: Literal["thompson", "ucb"] = "thompson"
    most: float = 4.0
    decay: float = 0.5
    explore: float = 1.0
    after: int = 1
    metric: str | None = None
    mode: Mode | None = None
    name: str = "bandit"

    def __post_init__(self) -> None:
        if self.rule not in ("thompson", "ucb"):
            raise ConfigError(f"rule must be 'thompson' or 'ucb', got {self.rule!r}")
        if not self.most > 1 or not 0 <= self.decay <= 1 or not self.explore > 0 or self.after < 1:
            raise ConfigError(
                f"most must be > 1, decay from 0 to 1, explore > 0 and after >= 1, got "
                f"{self.most}, {self.decay}, {self.explore} and {self.after}"
            )


@dataclass(frozen=True)
class Arm:
    """What is believed of a run: mean and standard error of its lead over its peers."""

    run: int
    mean: float
    error: float


def decide(policy: BanditBoost, seen: Seen) -> list[Decision]:
    """New weights, once for each chunk that the active runs have trained on average."""
    active = [r for r in seen.state.runs.values() if r.status in ACTIVE and r.total_steps]
    if len(active) < 2 or any(r.chunk < policy.after for r in active):
        return []
    key = f"round {sum(r.chunk for r in active) // len(active)} of {len(active)}"
    if decided(seen.memory, policy.name, key):
        return []
    arms = beliefs(policy, seen, active)
    if len(arms) < 2:
        return []
    draw = Random(f"{seen.seed} {policy.name} {key}")
    wanted = shares(policy, arms, draw)
    found = []
    for arm in arms:
        weight, now = wanted[arm.run], seen.state.runs[arm.run].weight
        if max(weight / now, now / weight) < _CHANGED:
            continue
        reason = (
            f"it is {abs(arm.mean):.2g} standard deviations "
            f"{'ahead of' if arm.mean >= 0 else 'behind'} its peers"
        )
        op = Op("boost", arm.run, {"weight": weight})
        found.append(ask(policy.name, key, op, reason))
    return [*found, note(policy.name, key, [a.run for a in arms], "shares are up to date")]


def beliefs(policy: BanditBoost, seen: Seen, active: list[Run]) -> list[Arm]:
    """The lead of each run over its peers, from all its chunks; newer ones count more."""
    metric, found = pick_metric(seen.rows, policy.metric), []
    runs = [r for r in seen.state.runs.values() if r.status != "deleted"]
    scores = chunk_scores(runs, seen.rows, metric, policy.mode)
    for run in active:
        start = warm_up(run, seen.rows.get(run.id, ()))
        known = []
        for at, own in scores[run.id].items():
            peers = [scores[r.id].get(barrier(r, at)) for r in runs if r.id != run.id]
            finite = [p for p in peers if p is not None and math.isfinite(p)]
            if at >= start and len(finite) >= 2:
                known.append(_lead(own, finite))
        if not known:
            continue
        counts = [policy.decay**age for age in range(len(known))][::-1]
        total = sum(counts)
        mean = sum(c * lead for c, lead in zip(counts, known, strict=True)) / total
        found.append(Arm(run.id, mean, policy.explore / math.sqrt(total)))
    return found


def _lead(own: float, peers: list[float]) -> float:
    """How far a run is ahead of its peers, in their standard deviations, from -3 to 3."""
    if math.isinf(own):
        return -3.0
    mean = fmean(peers)
    spread = deviation(peers) or abs(mean) or 1.0
    return max(-3.0, min(3.0, (mean - own) / spread))


def shares(policy: BanditBoost, arms: list[Arm], draw: Random) -> dict[int, float]:
    """The weight of each run, from 1 / most to most; they average about one."""
    if policy.rule == "ucb":
        bound = {arm.run: arm.mean + arm.error for arm in arms}
        total = sum(math.exp(b) for b in bound.values())
        parts = {run: math.exp(b) / total for run, b in bound.items()}
    else:
        wins = dict.fromkeys((arm.run for arm in arms), 0)
        for _ in range(_DRAWS):
            drawn = {arm.run: draw.gauss(arm.mean, arm.error) for arm in arms}
            wins[max(drawn, key=lambda run: drawn[run])] += 1
        parts = {run: count / _DRAWS for run, count in wins.items()}
    return {
        run: float(f"{min(policy.most, max(1 / policy.most, part * len(arms))):.2g}")
        for run, part in parts.items()
    }
