"""Whose turn it is to train, and who wants it to end: ops, questions, cells that hold training."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rapidfire_jupyter.fit import Fit


class Turn:
    """The one turn that there is in a process. The engine gives it; the rest is for any thread."""

    def __init__(self) -> None:
        self._of: tuple[Fit, int] | None = None
        self._lock = threading.Lock()
        self._hold = threading.Event()
        self._resting = threading.Event()

    # ---- for everybody ----

    def interrupt(self) -> None:
        """Ask the run whose turn it is to hand over at its next boundary."""
        with self._lock:
            if self._of is not None:
                fit, run = self._of
                fit.executor.ask(run, True)

    def hold(self, timeout: float) -> bool:
        """Pause training at the next boundary, until `release`; False if `timeout` seconds pass."""
        with self._lock:
            self._hold.set()
            training = self._of is not None
        self.interrupt()
        return self._resting.wait(timeout) if training else True

    def release(self) -> None:
        """Let training go on after `hold`."""
        self._hold.clear()

    def is_held(self) -> bool:
        """Whether training is to pause."""
        return self._hold.is_set()

    # ---- for the engine ----

    def begin(self, fit: Fit, run: int, anyhow: bool = False) -> bool:
        """Give a run the turn; False if training is held, unless it is to be `anyhow`."""
        with self._lock:
            if self._hold.is_set() and not anyhow:
                return False
            self._of = fit, run
            return True

    def end(self) -> None:
        """It is nobody's turn."""
        with self._lock:
            self._of = None

    @contextmanager
    def resting(self) -> Iterator[None]:
        """While inside, nobody computes, whoever has the turn: what `hold` waits for."""
        self._resting.set()
        try:
            yield
        finally:
            self._resting.clear()
