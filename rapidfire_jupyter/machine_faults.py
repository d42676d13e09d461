"""What goes wrong with the machine, seen in what was measured: settings of monitors, how they look.

Pure functions. What was not measured is None, and then there is no alert.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from rapidfire_jupyter.alerts import Alert, Remedy, episodes, stopping
from rapidfire_jupyter.measures import Disk, Slice
from rapidfire_jupyter.state import Run

_MIB = 2**20


@dataclass(frozen=True)
class MemoryGrowth:
    """Memory grows from slice to slice of a run.

    Attributes:
        gamma: Relative growth in each slice.
        slices: In this many slices in a row.
        settle: First slices of a run that do not count.
        least_bytes: Growth of the device's memory in all, below which there is no alert.
        least_rss_bytes: Of the kernel's, which also grows as other runs begin and arenas fill up.
    """

    gamma: float = 0.01
    slices: int = 5
    settle: int = 2
    least_bytes: float = 64 * _MIB
    least_rss_bytes: float = 512 * _MIB
    kind: str = "memory"


@dataclass(frozen=True)
class Slowdown:
    """A run trains much slower than it did, or its slice does not end.

    Attributes:
        drop: Share of its median speed that is lost.
        slices: In this many slices in a row; a slice that is over counts, evaluations included.
        least_s: Seconds that these slices took together, below which nothing is lost.
        stall: A slice that takes this many times its longest one so far, and `stall_s` seconds.
    """

    drop: float = 0.5
    slices: int = 2
    least_s: float = 15.0
    stall: float = 5.0
    stall_s: float = 120.0
    kind: str = "slowdown"


@dataclass(frozen=True)
class IdleDevice:
    """The device computes for less than a share of the time, over some slices of a run."""

    least: float = 0.8
    slices: int = 3
    kind: str = "idle device"


@dataclass(frozen=True)
class LowDisk:
    """The disk will not take the checkpoints to come.

    Attributes:
        reserve: Free bytes must be this many times what checkpoints may still take.
        least_bytes: Free bytes in any case.
    """

    reserve: float = 1.2
    least_bytes: float = 200 * _MIB
    kind: str = "disk"


def memory(one: MemoryGrowth, run: Run, slices: Sequence[Slice]) -> list[Alert]:
    """Stretches in which the memory grows from slice to slice."""
    found = []
    for what, name, least in (
        ("device_bytes", "device memory", one.least_bytes),
        ("rss_bytes", "memory of the kernel", one.least_rss_bytes),
    ):
        known = [
            (s.step, getattr(s, what)) for s in slices[one.settle :] if getattr(s, what) is not None
        ]
        flags = []
        for n in range(one.slices, len(known)):
            values = [value for _, value in known[n - one.slices : n + 1]]
            grows = all(b > a * (1 + one.gamma) for a, b in pairwise(values))
            flags.append((n, grows and values[-1] - values[0] >= least))
        for n in episodes(flags):
            step, first = known[n][0], known[n - one.slices][1]
            text = (
                f"{name} grew from {first / _MIB:.0f} to {known[n][1] / _MIB:.0f} MiB over "
                f"{one.slices} slices; a callback or metric may keep tensors"
            )
            remedies = stopping(run)
            found.append(Alert(one.kind, run.id, step, text, "warning", remedies, step))
    return found[:1]


def slowdown(one: Slowdown, run: Run, slices: Sequence[Slice], open_s: float | None) -> list[Alert]:
    """Stretches in which a run is slow; and the slice that trains now, if it takes too long.

    Args:
        one: Settings.
        run: The run.
        slices: Its slices that are over.
        open_s: Seconds since its slice that trains now began; None if none does.
    """
    whole = [s for s in slices if s.steps > 0 and s.seconds > 0]
    by_tokens = all(s.tokens for s in whole)
    speeds = [((s.tokens or 0) if by_tokens else s.steps) / s.seconds for s in whole]
    flags = []
    for n in range(one.slices + 2, len(speeds)):
        usual = median(speeds[: n - one.slices + 1])
        slow = (speed < (1 - one.drop) * usual for speed in speeds[n - one.slices + 1 : n + 1])
        took = sum(s.seconds for s in whole[n - one.slices + 1 : n + 1])
        flags.append((n, all(slow) and took >= one.least_s))
    unit, found = "tokens/s" if by_tokens else "steps/s", []
    for n in episodes(flags):
        usual = median(speeds[: n - one.slices + 1])
        text = f"{speeds[n]:.3g} {unit}, {usual:.3g} before; {_cause(whole[n])}"
        step = whole[n].step
        found.append(Alert(one.kind, run.id, step, text, "warning", (), step))
    longest = max((s.seconds for s in whole), default=0.0)
    enough = len(whole) >= 2 and open_s is not None
    if enough and open_s is not None and open_s > max(one.stall_s, one.stall * longest):
        text = f"its slice has trained for {open_s:.0f} s, the longest before took {longest:.0f} s"
        found.append(Alert(f"{one.kind}: stall", run.id, run.step, text, "warning", (), run.step))
    return found


def _cause(one: Slice) -> str:
    """What a slow or idle slice most likely comes from."""
    if one.eval_seconds is not None and one.eval_seconds > 0.3 * one.seconds:
        return f"evaluation took {100 * one.eval_seconds / one.seconds:.0f} % of the time"
    if one.fetch_seconds is not None and one.fetch_seconds > 0.2 * one.seconds:
        return (
            f"waiting for batches took {100 * one.fetch_seconds / one.seconds:.0f} % of the time: "
            "tokenise before, or set dataloader_num_workers"
        )
    if one.moving_seconds is not None and one.moving_seconds > 0.2 * one.seconds:
        return (
            f"moving weights and states took {100 * one.moving_seconds / one.seconds:.0f} % of the "
            "time: use longer slices, or a larger device_memory or host_memory"
        )
    if one.steps and one.seconds / one.steps < 0.1:
        return "steps are short, so launching them dominates: a larger batch size may fit"
    return "something else may be using the machine"


def idle(one: IdleDevice, run: Run, slices: Sequence[Slice]) -> list[Alert]:
    """Where a run first leaves the device idle, once."""
    known = [s for s in slices if s.utilisation is not None]
    flags = []
    for n in range(one.slices, len(known)):  # the first slice warms up
        part = [s.utilisation or 0.0 for s in known[n - one.slices + 1 : n + 1]]
        flags.append((n, fmean(part) < one.least))
    found = []
    for n in episodes(flags, len(flags))[:1]:
        share = fmean(s.utilisation or 0.0 for s in known[n - one.slices + 1 : n + 1])
        text = f"the device computed {100 * share:.0f} % of the time; {_cause(known[n])}"
        found.append(Alert(one.kind, run.id, known[n].step, text, "info", (), known[n].step))
    return found


def disk(one: LowDisk, measures: Sequence[Disk]) -> list[Alert]:
    """Times from which on the disk is too full."""
    low = [
        (n, d.free_bytes < max(one.least_bytes, one.reserve * d.needed_bytes))
        for n, d in enumerate(measures)
    ]
    found = []
    for n in episodes(low):
        at = measures[n]
        text = (
            f"{at.free_bytes / _MIB:.0f} MiB are free, and checkpoints may take "
            f"{at.needed_bytes / _MIB:.0f} MiB more; free space, or delete runs"
        )
        pause: Remedy = ("pause all runs", "pause_all", {})
        found.append(Alert(one.kind, None, None, text, "error", (pause,), int(at.time)))
    return found
