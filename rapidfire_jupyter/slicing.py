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
    """A slice that has begun, or a further turn of one; used with `with`. All times in seconds.

    One that is left before its end is told by what cut it short: an op, a failure. Of one that is
    trained in turns the log could not say what those took; `tell_cut` does.

    Attributes:
        before: What its turns before this one took.
        read: What was measured in this turn so far.
        watched: Spent in evaluations in this turn so far.
        elsewhere: On its run's account, but spent in other runs' turns; less than 0 if what was
            spent in this one is on theirs.
    """

    def __init__(self, fit: Fit, run: int, in_turns: bool = False) -> None:
        self._fit, self._run = fit, run
        self.started, self._computed = time.monotonic(), time.process_time()
        self._moving = fit.executor.moving_seconds()
        self.watched = self.elsewhere = 0.0
        self.read = Reading()
        memory.begin_peak()
        begun, step = fit.spent.pop(run, None), fit.state.runs[run].step
        self.before = Spent(step) if begun is None else begun
        self._left_open = in_turns or begun is not None
        if begun is None:
            fit.emit("slice_started", run, step=step, **({"turns": True} if in_turns else {}))

    def __enter__(self) -> "Slice":
        """Begin it."""
        return self

    def __exit__(self, *error: object) -> None:
        """Leave it; what its turns took is kept if it has not ended."""
        if self._left_open:
            self.pause()

    def seconds(self) -> float:
        """What this turn took of its run's account."""
        return time.monotonic() - self.started + self.elsewhere

    def charge(self, seconds: float, cpu_seconds: float) -> None:
        """Put seconds on its run's account, and seconds of the processor."""
        self.elsewhere += seconds
        self._computed -= cpu_seconds

    def is_over(self, step: int) -> bool:
        """Whether it is as long as the experiment's slices are to be."""
        steps, seconds = self._fit.pace.slice_steps, self._fit.pace.slice_seconds
        whole = steps is not None and step - self.before.step >= steps
        return whole or (seconds is not None and self._spent().seconds >= seconds)

    def taken(self) -> float:
        """Seconds that all of its turns took."""
        return self.before.seconds + self.seconds()

    def pause(self) -> None:
        """Let others have their turns; it goes on in its run's next one."""
        self._left_open = False
        self._fit.spent[self._run] = self._spent()

    def end(self, step: int) -> None:
        """Tell that it has ended."""
        self._left_open = False
        _tell(self._fit, self._run, step, self._spent())

    def _spent(self) -> Spent:
        """What all of its turns took."""
        before = self.before
        return Spent(
            before.step,
            self.taken(),
            before.watched + self.watched,
            before.moving + self._fit.executor.moving_seconds() - self._moving,
            before.computed + time.process_time() - self._computed,
            before.read + self.read,
        )


def tell_cut(fit: Fit) -> None:
    """Tell the slices in turns that have ended since their runs were closed between two turns."""
    for run in [one for one in fit.spent if not fit.executor.is_open(one)]:
        _tell(fit, run, fit.state.runs[run].step, fit.spent.pop(run))


def _tell(fit: Fit, run: int, step: int, spent: Spent) -> None:
    facts: dict[str, Any] = spent.read.facts()  # Any: numbers
    fit.emit(
        "slice_ended",
        run,
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
