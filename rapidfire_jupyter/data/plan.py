"""The chunk plan: one order of the rows, cut into chunks, for every run of an experiment.

Rows are ordered once, by their number in the user's data set, before anything is tokenised or
dropped. So all runs meet the same rows in the same chunk, whatever each of them drops.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rapidfire_jupyter.errors import ConfigError


@dataclass(frozen=True)
class ChunkPlan:
    """How an epoch's rows are ordered and cut.

    Attributes:
        rows: Rows of the data set.
        seed: Epoch `e` is ordered by `torch.randperm` seeded with `seed + e`: the order that
            accelerate's `SeedableRandomSampler` gives plain TRL for that data seed.
        starts: Position in the epoch's order at which each chunk starts; `starts[0]` is 0.
        strata: For each row the number of its stratum, where every chunk gets its share of each;
            empty for plain TRL's order.
        tasks: Rows of each task of a mixture, in the order of their rows; empty without one. A
            run's order then follows from its weights, see `mixing`; all runs are cut alike.
    """

    rows: int
    seed: int
    starts: tuple[int, ...]
    strata: tuple[int, ...] = ()
    tasks: tuple[int, ...] = ()

    @property
    def num_chunks(self) -> int:
        """Chunks in one epoch."""
        return len(self.starts)

    def order(self, epoch: int) -> list[int]:
        """Row numbers in the order of this epoch (counted from 0)."""
        if self.strata:
            return stratified_order(self.strata, self.seed, epoch)
        return shuffled_order(self.rows, self.seed, epoch)


def shuffled_order(rows: int, seed: int, epoch: int) -> list[int]:
    """All row numbers in plain TRL's order of an epoch."""
    import torch

    generator = torch.Generator().manual_seed(seed + epoch)
    order: list[int] = torch.randperm(rows, generator=generator).tolist()
    return order


def stratified_order(strata: Sequence[int], seed: int, epoch: int) -> list[int]:
    """All row numbers, random, but with the rows of each stratum spread evenly over the epoch.

    The j-th of a stratum's n rows, in random order, lies at random in the j-th n-th of the epoch;
    so any stretch of it holds each stratum's share, to within about a row.
    """
    import torch

    generator = torch.Generator().manual_seed(seed + epoch)
    numbers = torch.tensor(strata)  # (R,)
    shuffled = torch.randperm(len(numbers), generator=generator)
    rows = shuffled[torch.argsort(numbers[shuffled], stable=True)]  # stratum by stratum
    sizes = torch.bincount(numbers)
    before = torch.cumsum(sizes, 0) - sizes
    rank = torch.arange(len(rows)) - before[numbers[rows]]
    jitter = torch.rand(len(rows), generator=generator, dtype=torch.float64)
    places = (rank + jitter) / sizes[numbers[rows]]  # (R,), from 0 to 1
    order: list[int] = rows[torch.argsort(places, stable=True)].tolist()
    return order


def make_plan(
    rows: int,
    seed: int,
    num_chunks: int | None,
    chunk_size: int | None,
    strata: Sequence[int] = (),
) -> ChunkPlan:
    """Cut an epoch of `rows` rows into `num_chunks` even chunks, or chunks of `chunk_size` rows.

    More chunks than rows make one chunk of each row.

    Args:
        rows: Of the data set.
        seed: Of the order.
        num_chunks: Either this,
        chunk_size: or this.
        strata: As `ChunkPlan` has them.

    Raises:
        ConfigError: Both or neither are given, or one is no positive number.
    """
    if (num_chunks is None) == (chunk_size is None):
        raise ConfigError("give num_chunks or chunk_size (rows), not both; default is num_chunks=8")
    for name, value in (("num_chunks", num_chunks), ("chunk_size", chunk_size)):
        if value is not None and (
            not isinstance(value, int) or isinstance(value, bool) or value < 1
        ):
            raise ConfigError(f"{name} must be a whole number >= 1, got {value!r}")
    chunks = num_chunks if num_chunks is not None else math.ceil(rows / (chunk_size or 1))
    chunks = max(1, min(chunks, rows))
    if chunk_size is not None:
        return ChunkPlan(rows, seed, tuple(range(0, rows, chunk_size)), tuple(strata))
    starts = tuple(rows * k // chunks for k in range(chunks))
    return ChunkPlan(rows, seed, starts, tuple(strata))


def chunk_ends(
    plan: ChunkPlan,
    kept: Sequence[int] | None,
    rows_per_step: int,
    steps_per_epoch: int,
    total: int,
) -> list[int]:
    """Step at which each chunk of a run ends.

    A chunk holds the steps whose first row lies in it: whole optimizer steps, no batch is cut. A
    chunk in which this run has no step ends where the one before it ends.

    Args:
        kept: Row numbers this run trains on, in any order; None if it dropped none.
        rows_per_step: Rows of one optimizer step (batch size times accumulation).
        total: All optimizer steps of the run; the list ends with it.
    """
    ends: list[int] = []
    mine = None if kept is None else set(kept)
    for epoch in range(math.ceil(total / steps_per_epoch)):
        if mine is None:
            positions: Sequence[int] = range(plan.rows)
        else:
            positions = [p for p, row in enumerate(plan.order(epoch)) if row in mine]
        firsts = positions[::rows_per_step][:steps_per_epoch]
        done = epoch * steps_per_epoch
        for _, border in pairwise((*plan.starts, plan.rows)):
            last = border == plan.rows
            steps = steps_per_epoch if last else sum(first < border for first in firsts)
            ends.append(min(done + steps, total))
            if ends[-1] == total:
                return ends
    return ends


def even_ends(num_chunks: int, epochs: float, total: int, multiple: int = 1) -> list[int]:
    """Chunk ends by share of steps, for trainers whose steps are not rows (packing, GRPO, streams).

    Args:
        epochs: Epochs of the run; chunks in all are `num_chunks` times this, rounded up.
        multiple: Ends are moved to the next multiple of this many steps.
    """
    chunks = max(1, min(math.ceil(num_chunks * epochs - 1e-9), total))
    ends = [math.ceil(total * (k + 1) / chunks / multiple) * multiple for k in range(chunks)]
    return [min(end, total) for end in ends]
