"""What the panel knows of an experiment: its event log read once, event by event.

A `Fold` is moved on by the new events only, however long the log is. It owns memory, no thread:
whoever shares one between threads holds a lock.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from rapidfire_jupyter.events import Event
from rapidfire_jupyter.state import State, apply
from rapidfire_jupyter.ui.curves import Point, point
from rapidfire_jupyter.ui.entries import entry
from rapidfire_jupyter.ui.wire import Entry, Slice

MOST_ENTRIES = 200
MOST_SLICES = 2_000
_MEASURED = 4  # slices that a run's speed is measured over


class Fold:
    """An experiment as its events tell it.

    Attributes:
        next_seq: Sequence number of the event to read next.
        first_time: Unix time of the first event; 0 while there is none.
        curves: Logged points by run, in order; what was trained again is dropped.
        last: Last value of each metric, by run.
        metrics: Names of metrics in the order in which they were first logged.
        entries: The newest lines of the events tab.
        slices: The newest slices; `slice_count` is how many there ever were.
        open_slice: Run, Unix time and step of the slice that trains now.
        trained_s: Seconds of all slices that are over.
    """

    def __init__(self) -> None:
        self.state = State()
        self.next_seq = 0
        self.first_time = 0.0
        self.last_time = 0.0
        self.curves: dict[int, list[Point]] = {}
        self.last: dict[int, dict[str, float]] = {}
        self.metrics: dict[str, None] = {}
        self.entries: deque[Entry] = deque(maxlen=MOST_ENTRIES)
        self.slices: deque[Slice] = deque(maxlen=MOST_SLICES)
        self.slice_count = 0
        self.open_slice: tuple[int, float, int] | None = None
        self._in_turns = False  # the slice that trains now: it ends by an event of its own
        self.trained_s = 0.0
        self.alerts = 0
        self.why: dict[int, str] = {}  # why a policy stopped a run, by its last stop
        self.dropped: dict[int, int] = {}  # times that rows of a run were dropped
        self._steps_per_epoch: dict[int, float] = {}
        self._measures: dict[int, deque[tuple[int, float]]] = {}

    def read(self, events: Iterable[Event]) -> "Fold":
        """Move on by events that follow those read so far."""
        for event in events:
            self._read(event)
        return self

    def _read(self, event: Event) -> None:
        self.next_seq = event.seq + 1
        self.first_time = self.first_time or event.time
        self.last_time = event.time
        if event.kind == "logged":
            if event.run is not None:
                self._log(event.run, event)
            return
        self._time_slices(event)
        self.state = apply(self.state, event)
        if event.run is not None and event.kind == "run_prepared":
            self._steps_per_epoch[event.run] = event.data["steps_per_epoch"]
        if event.run is not None and event.kind == "run_recovered":
            self._recover(event.run, event.data["rows"])
        self.alerts += event.kind in ("alert", "run_failed")
        if event.kind == "op" and event.run is not None and event.data["kind"] == "stop":
            self._keep_reason(event.run, event.data)
        line = entry(event, self.first_time)
        if line is not None:
            self.entries.append(line)

    def _log(self, run: int, event: Event) -> None:
        time = event.time - self.first_time
        one = point(event.data["row"], time, self._steps_per_epoch.get(run))
        self.curves.setdefault(run, []).append(one)
        self._keep_last(run, one)

    def _keep_last(self, run: int, one: Point) -> None:
        self.last.setdefault(run, {}).update(zip(one.metrics, one.values, strict=True))
        for name in one.metrics:
            self.metrics.setdefault(name)

    def _keep_reason(self, run: int, data: Mapping[str, Any]) -> None:  # Any: JSON values
        if data["outcome"] == "applied":
            by_policy = str(data.get("by", "")).startswith("policy:")
            self.why[run] = str(data["reason"]) if by_policy else ""

    def _recover(self, run: int, rows: int) -> None:
        kept = self.curves.get(run, [])
        if rows >= len(kept):
            return
        del kept[rows:]
        self.dropped[run] = self.dropped.get(run, 0) + 1
        self.last[run] = {}
        for one in kept:
            self._keep_last(run, one)

    def _time_slices(self, event: Event) -> None:
        """Slices that an op, a failure or a crash cut short have no end of their own."""
        if event.kind == "slice_ended" and event.run is not None:
            start = event.time - event.data["seconds"]
            self._close_slice(event.run, start, event.time, event.data["steps"])
        elif self.open_slice is not None and _cuts(event, self.open_slice[0], self._in_turns):
            run, start, first = self.open_slice
            points = self.curves.get(run)
            reached = max(self._step(run), int(points[-1].step) if points else 0)
            # After a crash it ended, as far as is known, at its last row.
            last = self.first_time + points[-1].time if points else start
            end = max(start, last) if event.kind == "attached" else event.time
            self._close_slice(run, start, end, max(0, reached - first))
        if event.kind == "slice_started" and event.run is not None:
            self.open_slice = event.run, event.time, event.data["step"]
            self._in_turns = bool(event.data.get("turns"))

    def _step(self, run: int) -> int:
        return self.state.runs[run].step if run in self.state.runs else 0

    def _close_slice(self, run: int, start: float, end: float, steps: int) -> None:
        self.open_slice = None
        self.trained_s += max(0.0, end - start)
        self.slice_count += 1
        self.slices.append(
            {
                "run": run,
                "start": round(start - self.first_time, 3),
                "end": round(end - self.first_time, 3),
                "steps": steps,
            }
        )
        if steps > 0:
            kept = self._measures.setdefault(run, deque(maxlen=_MEASURED))
            kept.append((steps, end - start))

    def seconds_per_step(self) -> dict[int, float]:
        """How long a step takes, by run: over its newest slices, else over the one it is in."""
        found = {
            run: sum(s for _, s in kept) / sum(n for n, _ in kept)
            for run, kept in self._measures.items()
        }
        if self.open_slice is not None:
            run, start, first = self.open_slice
            points = self.curves.get(run)
            if run not in found and points and points[-1].step > first:
                seconds = points[-1].time + self.first_time - start
                if seconds > 0:
                    found[run] = seconds / (points[-1].step - first)
        return found

    def step(self, run: int) -> int:
        """Steps a run has done: at its last boundary, or further if it has logged a later row."""
        known, points = self.state.runs[run], self.curves.get(run)
        if known.status != "running" or not points:
            return known.step
        return max(known.step, int(points[-1].step))

    def rows_per_epoch(self) -> float | None:
        """Rows of the data set; None if that is not known."""
        fit: Any = self.state.fit or {}  # Any: JSON values
        rows = fit.get("train_rows")
        return float(rows) if rows is not None else None


def _cuts(event: Event, training: int, in_turns: bool) -> bool:
    """Whether a slice of the run `training` is over when this happens, and is told by nothing else.

    Slices in turns are open beside each other, and end by events of their own but for a crash.
    """
    if event.kind in ("attached", "ended"):
        return True
    if in_turns or event.data.get("turns"):
        return False
    if event.kind == "slice_started":
        return True
    if event.run != training:
        return False
    op = event.data["kind"] if event.kind == "op" and event.data["outcome"] == "applied" else ""
    return event.kind in ("run_failed", "run_completed") or op in ("stop", "delete")
