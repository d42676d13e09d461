"""How long it still takes: from what the runs' slices took, their weights and what is left."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rapidfire_jupyter.state import ACTIVE, Run, chunks_done


@dataclass(frozen=True)
class Etas:
    """Seconds of training left, for each active run and for all; None if not known yet."""

    runs: Mapping[int, float | None]
    whole: float | None


def etas(runs: Sequence[Run], seconds_per_step: Mapping[int, float]) -> Etas:
    """When each active run will be done, if all take turns by their weights from now on.

    A run that was not measured yet is taken to be as fast, per step, as the others are on average.

    Args:
        runs: All runs; those that are not active take no time.
        seconds_per_step: Measured, by run; runs without a measure are left out.
    """
    active = [r for r in runs if r.status in ACTIVE]
    if not active:
        return Etas({}, 0.0)
    if not seconds_per_step:
        return Etas({r.id: None for r in active}, None)
    usual = sum(seconds_per_step.values()) / len(seconds_per_step)
    lengths = [r.total_steps for r in runs if r.total_steps]
    if not lengths:
        return Etas({r.id: None for r in active}, None)
    typical_steps = sum(lengths) / len(lengths)
    turns = {}
    for run in active:
        total = run.total_steps or typical_steps
        seconds = max(0.0, total - run.step) * seconds_per_step.get(run.id, usual)
        left = len(run.chunk_ends) - chunks_done(run.chunk_ends, run.step)
        chunks = left if run.chunk_ends else 1.0
        turns[run.id] = _Turns(run.served, chunks, run.weight, seconds)
    done = {i: sum(_until(t, turn.end) for t in turns.values()) for i, turn in turns.items()}
    return Etas(dict(done), sum(t.seconds for t in turns.values()))


@dataclass(frozen=True)
class _Turns:
    """A run's place in the scheduler: virtual time it has, chunks and seconds it still needs."""

    served: float
    chunks: float
    weight: float
    seconds: float

    @property
    def end(self) -> float:
        """Virtual time at which it is done."""
        return self.served + self.chunks / self.weight


def _until(turns: _Turns, virtual: float) -> float:
    """Seconds that a run trains until a virtual time."""
    whole = turns.end - turns.served
    if whole <= 0:
        return turns.seconds
    return turns.seconds * min(1.0, max(0.0, (virtual - turns.served) / whole))
