"""Guarded successive halving: at chunk barriers the weaker runs stop, and no rank decides alone.

At each rung (1/8, 1/4, 1/2, 3/4 of the schedule) runs are compared on the same rows at the same
fraction of their schedules, as in synchronous successive halving (Jamieson & Talwalkar,
AISTATS 2016). What that gets wrong for fine-tuning, the guards catch: a run in its own warm-up is
not judged; the first cut of a run spares the best of each band of learning rates, since high rates
look good early; what cannot be told from the last one kept, or was not behind it a chunk before, is
kept too; and so is the run that would lead at the next rung if it went on catching up as in this
chunk. That one matters where schedules differ in form: a rate that still has to fall holds a loss
up, which a lower or a constant one does not.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rapidfire_jupyter.comparison import (
    NOISE,
    Mode,
    barrier,
    chunk_width,
    cohort,
    contrast,
    fraction,
    is_tie,
    learning_rate,
    pick_metric,
    reached,
    score_at,
    warm_up,
)
from rapidfire_jupyter.decisions import Decision, Seen, decided, note, stop
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.state import ACTIVE, Run

LAST_RUNG = 0.75  # of the schedule; after the doublings, when little changes any more
_CLOSE = 1e-9
_NEWEST = 20  # rows, among which there is a loss


@dataclass(frozen=True)
class Halving:
    """Settings of guarded successive halving.

    Attributes:
        eta: Of the runs that were judged before, one in `eta` goes on.
        first: Fraction of the schedule at the first rung; each next one is at twice the last.
        first_keep: Share of runs that their first cut spares, at least.
        metric: None takes eval_loss, or loss where nothing is evaluated.
        mode: Which way is better; None goes by the metric's name.
        noise: Relative difference that is a tie at the end: what the same config gives with another
            seed. At a rung it is divided by the root of the fraction: earlier, more may still flip.
        certainty: Standard errors of a paired difference that are a tie.
        most_kept: Ties and spared runs may raise what is kept to this multiple, rounded up, except
            at a first cut that keeps half; the best of a band of learning rates, and one that
            catches up, come on top.
        band: Learning rates within this factor of each other are one band.
        settle: Share of the schedule that a run trains after its warm-up before it is judged, if
            its warm-up is longer than others'.
        least: Runs that always go on.
    """

    eta: float = 4.0
    first: float = 0.125
    first_keep: float = 0.5
    metric: str | None = None
    mode: Mode | None = None
    noise: float = NOISE
    certainty: float = 1.64
    most_kept: float = 1.1
    band: float = 2.0
    settle: float = 0.03
    least: int = 1
    name: str = "halving"

    def __post_init__(self) -> None:
        if not self.eta > 1:
            raise ConfigError(f"eta must be > 1, got {self.eta}; 4 keeps a quarter at each rung")
        if not 0 < self.first < 1 or not 0 < self.first_keep <= 1:
            raise ConfigError(
                f"first and first_keep must be shares over 0, got {self.first} and "
                f"{self.first_keep}; 0.125 and 0.5 are the defaults"
            )
        if self.least < 1 or not self.most_kept >= 1:
            raise ConfigError(
                f"least and most_kept must be >= 1, got {self.least} and {self.most_kept}"
            )


def rungs(policy: Halving, width: float = 0.125) -> dict[float, bool]:
    """Chunk ends at which runs are cut, as fractions of the schedule, and whether all runs are.

    At those between the doublings only runs are judged that were in their warm-up before.

    Args:
        policy: Its first rung is at the first chunk end that is not before `first`.
        width: Share of the schedule that a chunk is.
    """
    count = round(1 / width)
    start = math.ceil(policy.first / width - _CLOSE)
    ends = range(start, count)
    late = math.ceil(LAST_RUNG * count - _CLOSE)
    return {k / count: k == late or (k % start == 0 and _is_power(k // start)) for k in ends}


def _is_power(count: int) -> bool:
    return count & (count - 1) == 0


def decide(policy: Halving, seen: Seen) -> list[Decision]:
    """What is decided now: runs that diverged stop at once, others at rungs that all reached."""
    found = _diverged(policy, seen)
    for rung, doubled in _rungs(policy, seen).items():
        gone = {one.op.run for one in found if one.op is not None}
        alive = {i: run for i, run in seen.state.runs.items() if i not in gone}
        inside = replace(seen, state=replace(seen.state, runs=alive))
        if decided(seen.memory, policy.name, f"rung {rung:g}"):
            found += _late(policy, inside, rung)
            continue
        together = cohort(inside.state, rung)
        if together is None:
            break
        found += _cut(policy, inside, _rank(policy, inside, rung, doubled, together))
    return found


def _rungs(policy: Halving, seen: Seen) -> dict[float, bool]:
    """Rungs of an experiment; runs of several epochs have more chunks, the fewest count.

    A run of one chunk has no end to be judged at before its last.
    """
    widths = [chunk_width(r) for r in seen.state.runs.values() if len(r.chunk_ends) > 1]
    return rungs(policy, max(widths, default=0.125))


def _diverged(policy: Halving, seen: Seen) -> list[Decision]:
    """Active runs whose newest loss is not finite, if there is one whose loss is."""
    newest = {}
    for run in seen.state.runs.values():
        losses = [row["loss"] for row in seen.rows.get(run.id, ())[-_NEWEST:] if "loss" in row]
        if losses and run.status in (*ACTIVE, "completed"):
            newest[run.id] = losses[-1]
    if not any(math.isfinite(loss) for loss in newest.values()):
        return []
    return [
        stop(policy.name, f"diverged {i} at {seen.state.runs[i].step}", i, "its loss is not finite")
        for i, loss in newest.items()
        if not math.isfinite(loss)
        and seen.state.runs[i].status in ACTIVE
        and i not in seen.memory.kept
    ]


def starts(policy: Halving, seen: Seen) -> dict[int, float]:
    """From which fraction on each run may be judged: past its warm-up, and trained by itself.

    Runs that share one warm-up are equals at its end. A longer one than others have is followed by
    some training at the full rate first, as long as the difference, at most `settle`.
    """
    known = {i: r for i, r in seen.state.runs.items() if r.total_steps}
    own = {i: warm_up(run, seen.rows.get(i, ())) for i, run in known.items()}
    shortest = min(own.values(), default=0.0)
    found = {i: warm + min(policy.settle, warm - shortest) for i, warm in own.items()}
    for i, run in known.items():
        if run.warm and run.clone_step is not None:
            found[i] = max(found[i], fraction(run, run.clone_step) + chunk_width(run))
    return found


@dataclass(frozen=True)
class _Ranking:
    """Runs that can be compared at a rung, best first; those from `quota` on are behind."""

    rung: float
    together: tuple[Run, ...]  # all runs there, also those that cannot be judged yet
    metric: str
    order: tuple[Run, ...]
    scores: Mapping[int, float]
    starts: Mapping[int, float]
    due: frozenset[int]  # runs that may be stopped here
    fresh: frozenset[int]  # those of them that were never judged before
    quota: int
    room: int  # how many of those behind may be spared as ties

    @property
    def behind(self) -> tuple[Run, ...]:
        return self.order[self.quota :]

    @property
    def bar(self) -> Run:
        return self.order[min(self.quota, len(self.order)) - 1]


def _rank(
    policy: Halving, seen: Seen, rung: float, doubled: bool, together: Sequence[Run]
) -> _Ranking:
    metric, scores = pick_metric(seen.rows, policy.metric), {}
    may = starts(policy, seen)
    together = [run for run in together if len(run.chunk_ends) > 1]
    for run in together:
        rows = seen.rows.get(run.id, ())
        score = score_at(run, rows, metric, barrier(run, rung), policy.mode)
        if score is not None and may[run.id] <= rung + _CLOSE:
            scores[run.id] = score
    order = sorted((r for r in together if r.id in scores), key=lambda r: (scores[r.id], r.id))
    fresh = {r.id for r in order if not _judged_before(policy, seen, r, rung)}
    due = {r.id for r in order if doubled or (r.id in fresh and r.parent is None)}
    shares = [
        1.0 if i not in due else policy.first_keep if i in fresh else 1 / policy.eta
        for i in (r.id for r in order)
    ]
    quota = max(policy.least, math.ceil(sum(shares) - _CLOSE))
    # What is in the middle at a first cut that keeps half is far from the best: no need for ties.
    tight = [s for s, run in zip(shares, order, strict=True) if s < 0.5 or run.id not in fresh]
    room = math.ceil(sum(tight) * (policy.most_kept - 1) - _CLOSE)
    return _Ranking(
        rung,
        tuple(together),
        metric,
        tuple(order),
        scores,
        may,
        frozenset(due),
        frozenset(fresh & due),
        quota,
        room,
    )


def _cut(policy: Halving, seen: Seen, ranking: _Ranking) -> list[Decision]:
    rung, key = ranking.rung, f"rung {ranking.rung:g}"
    if not ranking.due or math.isinf(ranking.scores[ranking.order[0].id]):
        return []
    spared = _spared(policy, seen, ranking)
    banded = _best_of_bands(policy, seen, ranking)
    closing = _catching_up(policy, seen, ranking)
    found, bar = [], ranking.bar
    for run in ranking.behind:
        movable = run.status in ACTIVE and run.id not in seen.memory.kept
        if run.id in spared | banded | closing or run.id not in ranking.due or not movable:
            continue
        reason = (
            f"{ranking.metric} {abs(ranking.scores[run.id]):.4g} at {rung:.3g} of its schedule is "
            f"behind {abs(ranking.scores[bar.id]):.4g} of run {bar.id}, the last of "
            f"{ranking.quota} kept"
        )
        found.append(stop(policy.name, key, run.id, reason))
    stopped = {one.runs[0] for one in found}
    judged = [r.id for r in ranking.order if r.id in ranking.due and r.id not in stopped]
    words = f"{len(ranking.order) - len(found)} of {len(ranking.order)} go on at {rung:.3g}"
    if spared:
        words += f"; ties: {_listed(spared)}"
    if banded - spared:
        words += f"; best of their learning rates: {_listed(banded - spared)}"
    if closing - spared - banded:
        words += f"; catching up: {_listed(closing)}"
    waiting = {r.id for r in ranking.together if r.id not in ranking.scores}
    if waiting:
        words += f"; not judged yet: {_listed(waiting)}"
    return [*found, note(policy.name, key, judged, words)]


def _judged_before(policy: Halving, seen: Seen, run: Run, rung: float) -> bool:
    earlier = [r for r in _rungs(policy, seen) if r < rung - _CLOSE]
    return any(decided(seen.memory, policy.name, f"rung {r:g}", run.id) for r in earlier)


def _spared(policy: Halving, seen: Seen, ranking: _Ranking) -> set[int]:
    """Runs that cannot be told from the last one kept, or were not behind it a chunk before."""
    found: set[int] = set()
    for run in ranking.behind[: ranking.room]:
        now = contrast(
            run,
            ranking.bar,
            seen.rows,
            ranking.metric,
            ranking.rung,
            mode=policy.mode,
            measures=seen.measures,
        )
        if run.id not in ranking.due or now is None or math.isinf(now.difference):
            continue
        before = _before(policy, seen, run, ranking.bar, ranking)
        # What is left of the schedule may still move a run by more than the noise floor.
        early = policy.noise / math.sqrt(ranking.rung)
        if is_tie(now, early, policy.certainty) or before <= 0:
            found.add(run.id)
    return found


def _catching_up(policy: Halving, seen: Seen, ranking: _Ranking) -> set[int]:
    """The run behind that would lead at the next rung if it went on gaining on the best."""
    best, found = ranking.order[0], {}
    later = (r for r, doubled in _rungs(policy, seen).items() if doubled and r > ranking.rung)
    chunks = (next(later, 1.0) - ranking.rung) / chunk_width(best)  # until they are compared again
    for run in ranking.behind:
        gap = ranking.scores[run.id] - ranking.scores[best.id]
        before = _before(policy, seen, run, best, ranking)
        if math.isfinite(gap) and math.isfinite(before):
            found[run.id] = gap - (before - gap) * chunks
    first = min(found, key=lambda i: found[i], default=0)
    return {first} if first and found[first] < 0 else set()


def _before(policy: Halving, seen: Seen, run: Run, other: Run, ranking: _Ranking) -> float:
    """How far a run was behind another one chunk earlier; infinite if that is not known."""
    earlier = ranking.rung - max(chunk_width(run), chunk_width(other))
    if earlier <= _CLOSE or ranking.starts[run.id] > earlier + _CLOSE:
        return math.inf
    known = contrast(run, other, seen.rows, ranking.metric, earlier, mode=policy.mode)
    return math.inf if known is None else known.difference


def _best_of_bands(policy: Halving, seen: Seen, ranking: _Ranking) -> set[int]:
    """Runs behind that are the best of their band of learning rates, at their first cut."""
    finite = [r for r in ranking.order if ranking.scores[r.id] < math.inf]
    rates = {r.id: learning_rate(r, seen.rows.get(r.id, ())) for r in finite}
    found = set()
    for low, high in bands_of(sorted({rate for rate in rates.values() if rate}), policy.band):
        best = next(r for r in finite if low <= (rates[r.id] or 0.0) <= high)
        if best.id in ranking.fresh and best in ranking.behind:
            found.add(best.id)
    return found


def bands_of(rates: Sequence[float], factor: float) -> list[tuple[float, float]]:
    """Ascending rates in groups; a gap of more than `factor` between neighbours parts two."""
    found: list[tuple[float, float]] = []
    for rate in rates:
        if found and rate <= found[-1][1] * factor * (1 + _CLOSE):
            found[-1] = found[-1][0], rate
        else:
            found.append((rate, rate))
    return found


def _late(policy: Halving, seen: Seen, rung: float) -> list[Decision]:
    """Clones that reach a rung after it was decided: each against the runs that went on there."""
    metric, key, found = pick_metric(seen.rows, policy.metric), f"rung {rung:g}", []
    judged = seen.memory.judged[policy.name, key]
    alive = [
        run
        for run in seen.state.runs.values()
        if run.id in judged and run.status in (*ACTIVE, "completed")
    ]
    may = starts(policy, seen)
    for run in seen.state.runs.values():
        new = run.parent is not None and run.id not in judged and run.id not in seen.memory.kept
        there = reached(run, rung) and may[run.id] <= rung + _CLOSE
        if run.status not in ACTIVE or not new or not there:
            continue
        against = [
            contrast(run, one, seen.rows, metric, rung, mode=policy.mode, measures=seen.measures)
            for one in alive
        ]
        known = [c for c in against if c is not None]
        behind = [
            c for c in known if c.difference > 0 and not is_tie(c, policy.noise, policy.certainty)
        ]
        if known and len(behind) == len(known):
            reason = f"{metric} at {rung:.3g} of its schedule is behind all runs that went on"
            found.append(stop(policy.name, key, run.id, reason))
        elif known:
            found.append(note(policy.name, key, (run.id,), "it came later and goes on"))
    return found


def _listed(runs: set[int]) -> str:
    return ", ".join(map(str, sorted(runs)))
