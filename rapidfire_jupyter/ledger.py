"""What policies, monitors and rankings know of an experiment: its event log, read once.

A `Ledger` is moved on by the new events only, however long the log is. It owns memory, no thread.
"""

from collections.abc import Iterable
from typing import Any

from rapidfire_jupyter.decisions import Memory, remember
from rapidfire_jupyter.events import Event
from rapidfire_jupyter.measures import Measures, measured


class Ledger:
    """An experiment as its events tell it, besides its state.

    Attributes:
        next_seq: Sequence number of the event to read next.
        rows: Logged rows by run, as `state.history` gives them. Any: numbers.
        memory: What was decided; `rehearsed` has what was decided in a dry run too.
        measures: What was measured beside the rows.
        told: Keys of the alerts that were raised.
        cost_told: Whether it was told what the experiment will cost.
        cost_summed: Whether it was told what it has cost since anything was trained.
    """

    def __init__(self) -> None:
        self.next_seq = 0
        self._begin()

    def _begin(self) -> None:
        self.rows: dict[int, list[dict[str, Any]]] = {}
        self.memory = Memory()
        self.rehearsed = Memory()
        self.measures = Measures()
        self.told: set[str] = set()
        self.cost_told = self.cost_summed = False

    def read(self, events: Iterable[Event]) -> "Ledger":
        """Move on by events that follow those read so far."""
        others: list[Event] = []
        for event in events:
            self.next_seq = event.seq + 1
            run = event.run
            if event.kind == "logged" and run is not None:
                self.rows.setdefault(run, []).append(event.data["row"])
                continue
            if event.kind == "fit_started":  # after one in which nothing was trained
                self._begin()
                others.clear()
            elif event.kind == "run_recovered" and run is not None:
                del self.rows.get(run, [])[event.data["rows"] :]
            elif event.kind == "alert" and "key" in event.data:
                self.told.add(event.data["key"])
            elif event.kind == "cost":
                self.cost_told, self.cost_summed = True, bool(event.data.get("over"))
            elif event.kind == "slice_ended":
                self.cost_summed = False
            others.append(event)
        self.memory = remember(others, self.memory)
        self.rehearsed = remember(others, self.rehearsed, dry_run=True)
        self.measures = measured(others, self.measures)
        return self
