"""What was measured beside the logged rows: slices, the disk, losses of single rows. Plain data.

`measured` reads it from the event log; what an event does not say stays None, and whoever needs it
stays silent.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rapidfire_jupyter.events import Event


@dataclass(frozen=True)
class Slice:
    """One slice of a run that is over. None: not measured.

    Attributes:
        end: Unix time in seconds.
        step: The run's step at its end.
        seconds: How long it took, evaluations included.
        tokens: Trained on in this slice.
        rss_bytes: Memory of the process at its end.
        device_bytes: Peak memory of the device in it.
        utilisation: Share of the time in which the device computed, from 0 to 1.
        eval_seconds: Of `seconds`, spent in evaluations.
        fetch_seconds: Of `seconds`, spent waiting for batches.
        moving_seconds: Of `seconds`, spent moving weights and states to and from the device.
        cpu_seconds: Of the processor, that this process had, over all its threads.
    """

    run: int
    end: float
    step: int
    steps: int
    seconds: float
    tokens: float | None = None
    rss_bytes: float | None = None
    device_bytes: float | None = None
    utilisation: float | None = None
    eval_seconds: float | None = None
    fetch_seconds: float | None = None
    moving_seconds: float | None = None
    cpu_seconds: float | None = None


@dataclass(frozen=True)
class Disk:
    """Free bytes at a Unix time, and bytes that checkpoints may still take."""

    time: float
    free_bytes: float
    needed_bytes: float = 0.0


@dataclass(frozen=True)
class Measures:
    """All that was measured, oldest first.

    Attributes:
        examples: Losses of single eval rows by (run, step), in one order for all runs.
    """

    slices: tuple[Slice, ...] = ()
    disk: tuple[Disk, ...] = ()
    examples: Mapping[tuple[int, int], Sequence[float]] = field(default_factory=dict)


_MEASURED = (
    "tokens",
    "rss_bytes",
    "device_bytes",
    "utilisation",
    "eval_seconds",
    "fetch_seconds",
    "moving_seconds",
    "cpu_seconds",
)


def measured(events: Iterable[Event], before: Measures | None = None) -> Measures:
    """Read measures from the event log: what `slice_ended` carries, `row_losses`, and `disk`.

    Args:
        events: In order.
        before: What the events before them gave.
    """
    before = before if before is not None else Measures()
    slices, disk = list(before.slices), list(before.disk)
    examples = dict(before.examples)
    for event in events:
        data: Mapping[str, Any] = event.data  # Any: JSON values
        if event.kind == "slice_ended" and event.run is not None:
            known = {name: data[name] for name in _MEASURED if data.get(name) is not None}
            slices.append(
                Slice(event.run, event.time, data["step"], data["steps"], data["seconds"], **known)
            )
        elif event.kind == "row_losses" and event.run is not None:
            losses = (math.nan if one is None else one for one in data["losses"])
            examples[event.run, data["step"]] = tuple(losses)
        elif event.kind == "disk":
            disk.append(Disk(event.time, data["free_bytes"], data.get("needed_bytes", 0.0)))
    return Measures(tuple(slices), tuple(disk), examples)


def seconds_by_run(measures: Measures) -> dict[int, float]:
    """Training seconds of each run, over its slices."""
    found: dict[int, float] = {}
    for one in measures.slices:
        found[one.run] = found.get(one.run, 0.0) + one.seconds
    return found
