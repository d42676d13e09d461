"""The engine's end of a run: it passes the baton with a command and gets it back with a report."""

import gc
import queue
import threading
from collections.abc import Callable

from rapidfire_jupyter.training import memory
from rapidfire_jupyter.training.coroutine import Coroutine
from rapidfire_jupyter.training.messages import Closed, Command, Failed, Report, Task

LOOK_SECONDS = 15.0  # between two looks at a run that trains


class Session:
    """The engine's end of a run's thread. All methods are for the engine's thread only."""

    def __init__(self, task: Task) -> None:
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self.interrupt = threading.Event()
        self._coroutine: Coroutine | None = Coroutine(
            task, self._commands, self._reports, self.interrupt
        )
        self._ran_out = False
        self._thread = threading.Thread(
            target=self._coroutine.main, name=f"rapidfire-run-{task.run_id}", daemon=True
        )

    def open(self) -> Report:
        """Build the trainer in the run's thread; wait until it is prepared or failed."""
        self._thread.start()
        return self._settled(self._reports.get())

    def command(self, command: Command, meanwhile: Callable[[], None] | None = None) -> Report:
        """Pass the baton with a command; wait for the baton to come back with a report.

        Args:
            meanwhile: Called now and then while the run has the baton; must leave alone what runs
                and the process share.
        """
        self._commands.put(command)
        while meanwhile is not None:
            try:
                return self._settled(self._reports.get(timeout=LOOK_SECONDS))
            except queue.Empty:
                meanwhile()
        return self._settled(self._reports.get())

    def _settled(self, report: Report) -> Report:
        if isinstance(report, Failed) and report.memory:
            self._ran_out = True
        if isinstance(report, Closed) or (isinstance(report, Failed) and report.is_over):
            self._thread.join()
            remains = self._coroutine.remains if self._coroutine is not None else []
            self._coroutine = None
            if any(reference() is not None for reference in remains):
                gc.collect()  # a cycle that we do not know; a collection takes a quarter second
            memory.ease(self._ran_out)
        return report
