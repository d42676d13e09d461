"""How an experiment is left, in the engine's thread: it is ended, its disk fails, Python ends."""

import contextlib
import logging

from rapidfire_jupyter.fit import Fit
from rapidfire_jupyter.slicing import tell_cut
from rapidfire_jupyter.training import messages

logger = logging.getLogger(__name__)


def end(fit: Fit) -> None:
    """Checkpoint and close all of its runs.

    Raises:
        OSError: The disk failed.
    """
    fit.left = True
    if fit.halted:
        with contextlib.suppress(OSError):
            fit.executor.end()
        return
    for run in fit.state.runs.values():
        if fit.executor.is_open(run.id):
            fit.checkpoint_and_close(run.id)
    tell_cut(fit)
    fit.executor.flush()
    fit.executor.end()
    fit.emit("ended", sync=True)


def halt(fit: Fit, error: Exception) -> None:
    """Stop training it where it is; no run is marked: it can be recovered."""
    if fit.halted:
        return
    if isinstance(error, FileNotFoundError):
        what = (
            f"something in the experiment's folder is gone ({error}); let nothing else remove "
            "files there"
        )
        logger.error("a file is gone", exc_info=error)
    elif isinstance(error, OSError):
        what = (
            f"the experiment's disk failed ({error}); free space (delete(run) frees that of a "
            "run) or repair it"
        )
    else:
        what = f"training stopped at a fault of the engine ({type(error).__name__}: {error})"
        logger.error("engine fault", exc_info=error)
    fit.left = True
    fit.halted = f"{what}, then run the same run_fit again: it goes on from the last checkpoints"
    with contextlib.suppress(OSError):
        fit.executor.end()
    with contextlib.suppress(OSError):
        fit.emit("alert", text=fit.halted)


def save(fit: Fit) -> None:
    """Save every run that has trained, as Python ends; their threads die with the process.

    Raises:
        OSError: The disk failed.
    """
    fit.left = True
    if fit.halted:
        return
    fit.executor.flush()  # what is on its way to the disk need not be saved again
    for run in fit.state.runs.values():
        if fit.executor.is_open(run.id) and run.id in fit.begun:
            report = fit.executor.command(run.id, messages.AbortEvaluation())
            saved = run.checkpoint_step or 0
            if isinstance(report, messages.Parked) and report.step > saved:
                fit.save(run.id)
    fit.executor.flush()
    fit.log.sync()
