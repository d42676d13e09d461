"""One slice of a run as the log tells it: when it began, what it took, and of what.

Runs that sample together train a slice in turns, after each of which the others have theirs. The
log tells such a slice like any other: once, with what its own turns took.
"""

import time
from typing import Any

from rapidfire_jupyter.fit import Fit, Spent
from rapidfire_jupyter.training import memory
from rapidfire_jupyter.training.gauge import Reading


class Slice:
    """A slice that has begun, or a further turn of one. All times in seconds.

    Attributes:
        before: What its turns before this one took.
        watched: Spent in evaluations in this turn so far.
        elsewhere: On its run's account, but spent in other runs' turns; less than 0 if what was
            spent in this one is on theirs.
    """

    def __init__(self, fit: Fit, run: int, in_turns: bool = False) -> None:
        self._fit, self._run = fit, run
        self.started, self._computed = time.monotonic(), time.process_time()
        self._moving = fit.executor.moving_seconds()
        self.watched = self.elsewhere = 0.0
        memory.begin_peak()
        begun, step = fit.spent.pop(run, None), fit.state.runs[run].step
        self.before = Spent(step) if begun is None else begun
        if begun is None:
            fit.emit("slice_started", run, step=step, **({"turns": True} if in_turns else {}))

    def seconds(self) -> float:
        """What this turn took of its run's account."""
        return time.monotonic() - self.started + self.elsewhere

    def charge(self, seconds: float, cpu_seconds: float) -> None:
        """Put seconds on its run's account, and seconds of the processor."""
        self.elsewhere += seconds
        self._computed -= cpu_seconds

    def is_over(self, step: int, read: Reading) -> bool:
        """Whether it is as long as the experiment's slices are to be."""
        steps, seconds = self._fit.pace.slice_steps, self._fit.pace.slice_seconds
        whole = steps is not None and step - self.before.step >= steps
        return whole or (seconds is not None and self._spent(read).seconds >= seconds)

    def pause(self, read: Reading) -> None:
        """Let others have their turns; it goes on in its run's next one."""
        self._fit.spent[self._run] = self._spent(read)

    def end(self, step: int, read: Reading) -> None:
        """Tell that it has ended."""
        spent = self._spent(read)
        facts: dict[str, Any] = spent.read.facts()  # Any: numbers
        self._fit.emit(
            "slice_ended",
            self._run,
            step=step,
            steps=step - spent.step,
            seconds=spent.seconds,
            rss_bytes=memory.process_bytes(),
            device_bytes=memory.peak_bytes(),
            eval_seconds=spent.watched,
            moving_seconds=spent.moving,
            cpu_seconds=spent.computed,
            **facts,
        )

    def _spent(self, read: Reading) -> Spent:
        """What all of its turns took."""
        before = self.before
        return Spent(
            before.step,
            before.seconds + self.seconds(),
            before.watched + self.watched,
            before.moving + self._fit.executor.moving_seconds() - self._moving,
            before.computed + time.process_time() - self._computed,
            before.read + read,
        )
