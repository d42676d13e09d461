"""An experiment's folder as this kernel has it open: its owner, its log, the state that gives."""

import contextlib
from pathlib import Path

from rapidfire_jupyter import folders, state
from rapidfire_jupyter.errors import ExperimentError
from rapidfire_jupyter.events import Event, EventLog
from rapidfire_jupyter.state import State


class Opened:
    """A folder that one kernel owns, and any number of others read.

    Attributes:
        log: Everything that happened.
        state: As the log gives it.
        read_only: Whether another kernel owned it when it was opened.

    Raises:
        ExperimentError: The folder cannot be made, or its log is damaged.
    """

    log: EventLog
    state: State
    read_only: bool

    def __init__(self, folder: Path) -> None:
        folders.make(folder)
        self.folder = folder
        self._lock = folders.Lock(folder)
        self._read(owned=self._lock.acquire())

    def _read(self, owned: bool) -> None:
        try:
            self.log = EventLog(self.folder / "events.jsonl", read_only=not owned)
        except BaseException:
            self._lock.release()
            raise
        self.read_only = not owned
        self.state = State()
        for event in self.log.events:
            self._follow(event)
        self.log.subscribe(self._follow)

    def _follow(self, event: Event) -> None:
        self.state = state.apply(self.state, event)

    def take_over(self) -> bool:
        """Own the folder if the kernel that owned it has gone, and read it anew; whether it had."""
        gone = self.read_only and self._lock.acquire()
        if gone:
            self._read(owned=True)
        return gone

    def owner(self) -> str:
        """Process id of the kernel that owns it."""
        return self._lock.owner()

    def is_on_disk(self) -> bool:
        """Whether it is still where it was."""
        return self.log.is_on_disk()

    def check_writable(self, name: str) -> None:
        """Refuse to train an experiment, here called `name`, whose folder this kernel cannot write.

        Raises:
            ExperimentError: It cannot.
        """
        again = f"make it again: exp = Experiment({name!r})"
        if not self.is_on_disk():
            raise ExperimentError(f"the folder of experiment {name!r} was deleted; {again}")
        if self.read_only:
            raise ExperimentError(
                f"experiment {name!r} is open in another kernel (process {self.owner()}); shut "
                "that kernel down, or use another name"
            )
        if self.log.closed:
            raise ExperimentError(f"this object of experiment {name!r} has ended; {again}")

    def close(self) -> None:
        """Let another kernel own it; what happened stays readable."""
        self.log.close()
        self._lock.release()

    def abandon(self) -> None:
        """The same of a folder that was deleted: nothing of it can be kept."""
        with contextlib.suppress(OSError):
            self.log.close()
        self._lock.release()
