"""Policies that stop runs by one number: a threshold, outliers, slow learners, a budget."""

import math
from dataclasses import dataclass
from statistics import fmean, median

from rapidfire_jupyter.comparison import (
    NOISE,
    Mode,
    Rows,
    barrier,
    chunk_scores,
    chunk_width,
    cohort,
    deviation,
    fraction,
    lower_is_better,
    newest_score,
    pick_metric,
    progress,
    same_fraction,
    score_at,
    warm_up,
)
from rapidfire_jupyter.decisions import Decision, Seen, decided, note, stop
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.measures import seconds_by_run
from rapidfire_jupyter.state import ACTIVE, Run, State

_CLOSE = 1e-9


@dataclass(frozen=True)
class Threshold:
    """Stop runs whose metric is on the wrong side of a limit at a chunk end.

    Attributes:
        limit: Runs with a loss above it are stopped; with a metric of which more is better, those
            below it.
        after: Chunks that a run trains before it is judged.
        metric: "loss" is the mean over the chunk.
        keep_best: The best active run goes on even then, unless its value is not finite.
    """

    limit: float = 2.0
    after: int = 1
    metric: str = "loss"
    mode: Mode | None = None
    keep_best: bool = True
    name: str = "threshold"

    def __post_init__(self) -> None:
        _at_least("after", self.after, 1)


def decide_threshold(policy: Threshold, seen: Seen) -> list[Decision]:
    """Judge each active run at its newest chunk end."""
    sign = 1.0 if lower_is_better(policy.metric, policy.mode) else -1.0
    newest = {}
    for run in seen.state.runs.values():
        known = newest_score(run, seen.rows.get(run.id, ()), policy.metric, policy.mode)
        if run.status in (*ACTIVE, "completed") and known is not None:
            newest[run.id] = known[1]
    best = min(newest, key=lambda i: (newest[i], i), default=None)
    found = []
    for run in _judgeable(seen, policy.after):
        key = f"chunk {run.chunk}"
        score = newest.get(run.id)
        if score is None or decided(seen.memory, policy.name, key, run.id):
            continue
        spared = policy.keep_best and run.id == best and math.isfinite(score)
        if score > sign * policy.limit and not spared:
            side = "above" if sign > 0 else "below"
            reason = (
                f"{policy.metric} {sign * score:.4g} is {side} {policy.limit:g} after chunk "
                f"{run.chunk}"
            )
            found.append(stop(policy.name, key, run.id, reason))
    return found


@dataclass(frozen=True)
class Outliers:
    """Stop runs that are worse than the mean of their peers by some standard deviations.

    Peers are all other runs at the same fraction of their schedules, stopped ones too; the run
    itself does not count, since with itself among n runs none can be (n - 1) / sqrt(n) away.

    Attributes:
        sigmas: Standard deviations of the peers.
        after: Chunks that a run trains before it is judged.
        peers: Fewer say nothing.
        chunks: In this many chunks in a row it must be so.
        noise: Relative difference that is a tie.
    """

    sigmas: float = 2.0
    after: int = 2
    peers: int = 4
    chunks: int = 2
    metric: str | None = None
    mode: Mode | None = None
    noise: float = NOISE
    name: str = "outliers"

    def __post_init__(self) -> None:
        _at_least("after", self.after, 1)
        _at_least("peers", self.peers, 2)
        _at_least("chunks", self.chunks, 1)
        _at_least("sigmas", self.sigmas, 0)


def decide_outliers(policy: Outliers, seen: Seen) -> list[Decision]:
    """Judge each active run that is past its warm-up, at its newest chunk end."""
    metric, found = pick_metric(seen.rows, policy.metric), []
    runs = [r for r in seen.state.runs.values() if r.status != "deleted"]
    scores = chunk_scores(runs, seen.rows, metric, policy.mode)
    starts = {r.id: warm_up(r, seen.rows.get(r.id, ())) for r in runs}
    for run in _judgeable(seen, policy.after):
        key = f"chunk {run.chunk}"
        newest = list(scores[run.id].items())[-policy.chunks :]
        if len(newest) < policy.chunks or decided(seen.memory, policy.name, key, run.id):
            continue
        if newest[0][0] < starts[run.id] - _CLOSE:
            continue
        limits = []
        for at, _ in newest:
            peers = [r for r in runs if r.id != run.id and starts[r.id] <= at + _CLOSE]
            known = [scores[r.id].get(barrier(r, at)) for r in peers]
            limits.append(_limit(policy, [k for k in known if k is not None]))
        if all(score > limit for (_, score), limit in zip(newest, limits, strict=True)):
            reason = (
                f"{metric} {abs(newest[-1][1]):.4g} is beyond {abs(limits[-1]):.4g}, the mean of "
                f"its peers and {policy.sigmas:g} standard deviations, in {policy.chunks} chunks"
            )
            found.append(stop(policy.name, key, run.id, reason))
    return found


def _limit(policy: Outliers, scores: list[float]) -> float:
    """The worst score that is still among the peers'; infinite if there are too few of them."""
    finite = [score for score in scores if math.isfinite(score)]
    if len(finite) < policy.peers:
        return math.inf
    mean = fmean(finite)
    return mean + max(policy.sigmas * deviation(finite), policy.noise * abs(mean))


@dataclass(frozen=True)
class SlowLearners:
    """Stop the share of runs that improve least, unless they are good already.

    The rate is what the score fell by over the last chunks, relative to its size. A good run that
    has converged improves little: so only runs behind the median are stopped.

    Attributes:
        share: Of the runs at a barrier, at most.
        at: Fractions of the schedule at which it acts.
        chunks: Over which the rate is taken.
        noise: Relative difference from the median that is a tie.
    """

    share: float = 0.2
    at: tuple[float, ...] = (0.25, 0.5)
    chunks: int = 1
    metric: str | None = None
    mode: Mode | None = None
    noise: float = NOISE
    name: str = "slow learners"

    def __post_init__(self) -> None:
        _at_least("chunks", self.chunks, 1)
        if not 0 < self.share < 1 or any(not 0 < at < 1 for at in self.at):
            raise ConfigError(
                f"share and at must be shares over 0 and under 1, got {self.share} and {self.at}"
            )


def decide_slow(policy: SlowLearners, seen: Seen) -> list[Decision]:
    """Judge all runs at a barrier that all have reached."""
    metric = pick_metric(seen.rows, policy.metric)
    for at in sorted(policy.at):
        key = f"at {at:g}"
        if decided(seen.memory, policy.name, key):
            continue
        together = cohort(seen.state, at)
        if together is None:
            return []
        rates, scores = {}, {}
        for run in together:
            rows = seen.rows.get(run.id, ())
            here = barrier(run, at)
            before = here - policy.chunks * chunk_width(run)
            if before < warm_up(run, rows) - _CLOSE:
                continue
            first = score_at(run, rows, metric, before, policy.mode)
            last = score_at(run, rows, metric, here, policy.mode)
            if first is not None and last is not None:
                scores[run.id] = last
                finite = math.isfinite(first) and math.isfinite(last) and first != 0
                rates[run.id] = (first - last) / abs(first) if finite else -math.inf
        middle = median(scores.values()) if scores else 0.0
        behind = [
            i
            for i in rates
            if scores[i] - middle > policy.noise * abs(middle)
            and seen.state.runs[i].status in ACTIVE
            and i not in seen.memory.kept
        ]
        slowest = sorted(behind, key=lambda i: (rates[i], i))[: int(policy.share * len(rates))]
        found = [
            stop(
                policy.name,
                key,
                i,
                f"{metric} improved by {100 * rates[i]:.2g} % over the last {policy.chunks} chunks "
                f"up to {at:.3g} of its schedule, the least of those behind the median",
            )
            for i in slowest
        ]
        words = f"judged {len(rates)} runs at {at:g}"
        return [*found, note(policy.name, key, sorted(rates), words)]
    return []


@dataclass(frozen=True)
class Budget:
    """Stop training so that a budget is kept.

    Attributes:
        seconds: Of training, over all runs; None for no limit.
        tokens: Trained on, over all runs, as `num_tokens` is logged; None for no limit.
        finish: As many of the best runs may finish: the others stop as early as that takes.
    """

    seconds: float | None = None
    tokens: float | None = None
    finish: int = 1
    metric: str | None = None
    mode: Mode | None = None
    name: str = "budget"

    def __post_init__(self) -> None:
        if self.seconds is None and self.tokens is None:
            raise ConfigError("a budget needs seconds= or tokens=, got neither; give one")
        for what, value in (("seconds", self.seconds), ("tokens", self.tokens)):
            if value is not None and not value > 0:
                raise ConfigError(f"{what} must be > 0, got {value}")
        _at_least("finish", self.finish, 0)


def decide_budget(policy: Budget, seen: Seen) -> list[Decision]:
    """Stop what the rest of the budget does not pay for."""
    metric = pick_metric(seen.rows, policy.metric)
    active = [
        r for r in seen.state.runs.values() if r.status in ACTIVE and r.id not in seen.memory.kept
    ]
    at = same_fraction([r for r in active if r.chunk])
    scores = {}
    for run in active:
        score = score_at(run, seen.rows.get(run.id, ()), metric, barrier(run, at), policy.mode)
        scores[run.id] = math.inf if score is None else score
    best = sorted(active, key=lambda r: (scores[r.id], r.id))[: policy.finish]
    for what, limit in (("seconds", policy.seconds), ("tokens", policy.tokens)):
        if limit is None:
            continue
        spent = (
            seconds_by_run(seen.measures) if what == "seconds" else tokens(seen.state, seen.rows)
        )
        total = sum(spent.values())
        reserve = sum(_rest(r, spent.get(r.id, 0.0)) for r in best)
        going = active if total >= limit else [r for r in active if r not in best]
        if total + reserve >= limit and going and (total >= limit or len(active) > len(best)):
            reason = f"{total:.4g} of {limit:.4g} {what} are spent"
            if total < limit:
                names = ", ".join(str(r.id) for r in best)
                reason += f", and {reserve:.4g} are what finishing run {names} takes"
            return [stop(policy.name, what, r.id, reason) for r in going]
    return []


def tokens(state: State, rows: Rows) -> dict[int, float]:
    """Tokens each run trained on, as `num_tokens` is logged; of a warm clone its own only."""
    found = {}
    for run in state.runs.values():
        own = [row["num_tokens"] for row in rows.get(run.id, ()) if "num_tokens" in row]
        if not own:
            continue
        start = 0.0
        if run.warm and run.parent is not None:
            inherited = [
                row["num_tokens"]
                for row in rows.get(run.parent, ())
                if "num_tokens" in row and row["step"] <= (run.clone_step or 0)
            ]
            start = inherited[-1] if inherited else 0.0
        found[run.id] = float(own[-1] - start)
    return found


def _rest(run: Run, spent: float) -> float:
    """What finishing a run takes, at what it took so far."""
    start = fraction(run, run.clone_step or 0) if run.warm else 0.0
    done = progress(run) - start
    return spent * (1 - progress(run)) / done if done > 0 else 0.0


def _judgeable(seen: Seen, after: int) -> list[Run]:
    """Active runs at or past a chunk that no person has taken out of the policies' hands."""
    return [
        r
        for r in seen.state.runs.values()
        if r.status in ACTIVE and r.chunk >= after and r.id not in seen.memory.kept
    ]


def _at_least(name: str, value: float, least: float) -> None:
    if not value >= least:
        raise ConfigError(f"{name} must be >= {least:g}, got {value!r}")
