"""What goes wrong with the machine, seen in what was measured: settings of monitors, how they look.

Pure functions. What was not measured is None, and then there is no alert.
"""

from bisect import insort
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
    """A run trains much slower than it did, or its slice does not end (`stalled`).

    Where the other runs are as slow at the same time, or this process had less of the processor, it
    is the machine that others use, not the run: that is told once of the experiment.

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


def slowdown(
    one: Slowdown,
    run: Run,
    slices: Sequence[Slice],
    everyone: Sequence[Slice] = (),
) -> list[Alert]:
    """Stretches in which a run is slow.

    Args:
        one: Settings.
        run: The run.
        slices: Its slices that are over.
        everyone: Slices of all runs.
    """
    whole, speeds, by_tokens = _speeds(slices)
    flags, before = [], sorted(speeds[:2])
    for n in range(one.slices + 2, len(speeds)):
        insort(before, speeds[n - one.slices])
        usual = _middle(before)
        slow = (speed < (1 - one.drop) * usual for speed in speeds[n - one.slices + 1 : n + 1])
        took = sum(s.seconds for s in whole[n - one.slices + 1 : n + 1])
        flags.append((n, all(slow) and took >= one.least_s))
    unit, found = "tokens/s" if by_tokens else "steps/s", []
    for n in episodes(flags):
        usual = median(speeds[: n - one.slices + 1])
        slowed = f"{speeds[n]:.3g} {unit}, {usual:.3g} before"
        why = _outside(one, whole[: n + 1], [s for s in everyone if s.run != run.id])
        if why:
            text = f"run {run.id} trains at {slowed}: {why}"
            found.append(Alert(f"{one.kind}: shared machine", None, None, text, "info"))
            continue
        text = f"{slowed}; {_cause(whole[n])}"
        step = whole[n].step
        found.append(Alert(one.kind, run.id, step, text, "warning", (), step))
    return found


def stalled(one: Slowdown, run: Run, slices: Sequence[Slice], open_s: float) -> list[Alert]:
    """Whether the slice that trains now takes too long.

    Args:
        one: Settings.
        run: The run.
        slices: Its slices that are over.
        open_s: Seconds that the one which trains now has taken so far.
    """
    whole = [s.seconds for s in slices if s.steps > 0]
    if len(whole) < 2 or open_s <= max(one.stall_s, one.stall * max(whole)):
        return []
    text = f"its slice has trained for {open_s:.0f} s, the longest before took {max(whole):.0f} s"
    return [Alert(f"{one.kind}: stall", run.id, run.step, text, "warning", (), run.step)]


def _middle(ordered: Sequence[float]) -> float:
    """The median of numbers in order."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _speeds(slices: Sequence[Slice]) -> tuple[list[Slice], list[float], bool]:
    """Slices in which something was trained, their speeds, and whether those are of tokens."""
    whole = [s for s in slices if s.steps > 0 and s.seconds > 0]
    by_tokens = all(s.tokens for s in whole)
    amounts = [(s.tokens or 0) if by_tokens else s.steps for s in whole]
    return whole, [n / s.seconds for n, s in zip(amounts, whole, strict=True)], by_tokens


def _outside(one: Slowdown, whole: Sequence[Slice], others: Sequence[Slice]) -> str:
    """Why the newest slices are slow, if that does not come from their run; else ""."""
    slow = whole[-one.slices :]
    if _waits(slow, whole[: -one.slices]):
        return ""
    lost = _kept(one.slices, [(s, s.seconds) for s in whole])
    counted = [(s, s.cpu_seconds) for s in whole if s.cpu_seconds]
    if len(counted) == len(whole) and _kept(one.slices, counted) > 1 - one.drop:
        shares = [s.cpu_seconds / s.seconds for s in whole if s.cpu_seconds]
        now, usual = fmean(shares[-one.slices :]), median(shares[: -one.slices])
        had = f"{100 * now:.0f} % of a processor, {100 * usual:.0f} % before"
        return f"this kernel had {had}: other programs use the machine, or a callback waits"
    since, until = slow[0].end - slow[0].seconds, slow[-1].end
    paces = []
    for run in {s.run for s in others}:
        own = _speeds([s for s in others if s.run == run])
        pairs = list(zip(own[0], own[1], strict=True))
        then = [speed for s, speed in pairs if since <= s.end <= until]
        before = [speed for s, speed in pairs if s.end < since]
        if then and len(before) >= 2:
            paces.append(fmean(then) / median(before))
    if len(paces) >= 2 and lost > (1 - one.drop) * median(paces):
        return "the other runs lost as much: something else may be using the machine"
    return ""


def _kept(slices: int, spent: Sequence[tuple[Slice, float]]) -> float:
    """Share of the usual speed that the newest slices have, by the seconds given for each."""
    speeds = [(s.tokens or s.steps) / seconds for s, seconds in spent]
    return fmean(speeds[-slices:]) / median(speeds[:-slices])


def _waits(slow: Sequence[Slice], before: Sequence[Slice]) -> bool:
    """Whether what a run does besides its steps takes much of slices, and more than before."""
    for name, much in (("eval_seconds", 0.3), ("fetch_seconds", 0.2), ("moving_seconds", 0.2)):
        shares = [[(getattr(s, name) or 0.0) / s.seconds for s in part] for part in (slow, before)]
        if fmean(shares[0]) > max(much, 1.5 * median(shares[1])):
            return True
    return False


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
