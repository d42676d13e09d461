"""One slice of a run as the log tells it: when it began, what it took, and of what."""

import time
from typing import Any

from rapidfire_jupyter.fit import Fit
from rapidfire_jupyter.training import memory
from rapidfire_jupyter.training.gauge import Reading


class Slice:
    """A slice that has begun. All times in seconds.

    Attributes:
        watched: Spent in evaluations so far.
        elsewhere: Of those, spent in other runs' turns; less than 0 if others answered in this one.
    """

    def __init__(self, fit: Fit, run: int) -> None:
        self._fit, self._run = fit, run
        self.first_step = fit.state.runs[run].step
        self.started, self._computed = time.monotonic(), time.process_time()
        self._moving = fit.executor.moving_seconds()
        self.watched = self.elsewhere = 0.0
        memory.begin_peak()
        fit.emit("slice_started", run, step=self.first_step)

    def seconds(self) -> float:
        """What it took of its run's account."""
        return time.monotonic() - self.started + self.elsewhere

    def end(self, step: int, read: Reading) -> None:
        """Tell that it has ended."""
        facts: dict[str, Any] = read.facts()  # Any: numbers
        self._fit.emit(
            "slice_ended",
            self._run,
            step=step,
            steps=step - self.first_step,
            seconds=self.seconds(),
            rss_bytes=memory.process_bytes(),
            device_bytes=memory.peak_bytes(),
            eval_seconds=self.watched,
            moving_seconds=self._fit.executor.moving_seconds() - self._moving,
            cpu_seconds=time.process_time() - self._computed,
            **facts,
        )
