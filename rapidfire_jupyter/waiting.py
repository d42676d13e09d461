"""Waiting for training: it goes on meanwhile, and where it cannot, whoever waits is told."""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rapidfire_jupyter.errors import ExperimentError, OpError

if TYPE_CHECKING:
    from rapidfire_jupyter.experiment import Experiment

_LOOK_SECONDS = 0.5  # at what no event tells


def until(exp: "Experiment", done: Callable[[], bool], timeout: float | None) -> None:
    """Wait until something is so; asked after each event of an experiment.

    Args:
        timeout: In seconds; None for ever.

    Raises:
        OpError: `timeout` is no number.
        TimeoutError: So many seconds have passed.
        ExperimentError: The experiment does not train here, or its disk failed.
    """
    from rapidfire_jupyter import isolation

    if timeout is not None and not isinstance(timeout, int | float):
        raise OpError(f"timeout is a number of seconds, got {timeout!r:.40}")
    deadline = None if timeout is None else time.monotonic() + timeout
    changed = threading.Event()
    unsubscribe = exp._opened.log.subscribe(lambda event: changed.set())
    try:
        with isolation.waiting():
            while not done():
                _check_trains(exp)
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(
                        f"experiment {exp.name!r} is still training after {timeout} s"
                    )
                changed.wait(_LOOK_SECONDS if left is None else min(_LOOK_SECONDS, left))
                changed.clear()
    finally:
        unsubscribe()


def _check_trains(exp: "Experiment") -> None:
    if exp._fit is None:
        raise ExperimentError(f"experiment {exp.name!r} is not training here; run its run_fit cell")
    if exp._fit.halted:
        raise ExperimentError(exp._fit.halted)
