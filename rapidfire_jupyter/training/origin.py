"""Where a run goes on from: its own first step, a checkpoint of its own, or one of its parent.

Any: JSON values, TRL trainers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.trainer_callback import ExportableState

from rapidfire_jupyter.config import flatten
from rapidfire_jupyter.encoding import encode
from rapidfire_jupyter.training import adapters, checkpoints, warm, watching
from rapidfire_jupyter.training.messages import Task
from rapidfire_jupyter.training.trainers import Schedule

_STATELESS = ("transformers.", "rapidfire_jupyter.")  # whose callbacks lose nothing at a restart


@dataclass(frozen=True)
class Origin:
    """Where a run goes on from.

    Attributes:
        path: The checkpoint; None at its first step.
        extra: What that holds beside Hugging Face's own files.
        step: Steps that are done there.
    """

    path: Path | None
    extra: dict[str, Any]
    step: int


def of(task: Task) -> Origin:
    """Where a run goes on from, as its newest checkpoint or its parent's has it."""
    path = task.resume.path if task.resume else task.source
    extra = checkpoints.read_extra(path) if path else {}
    return Origin(path, extra, task.resume.step if task.resume else 0)


def adapted(
    origin: Origin, task: Task, trainer: Any, schedule: Schedule
) -> tuple[Origin, tuple[str, ...]]:
    """The same for another config than it was made with: a warm clone's, or a longer run's.

    Returns:
        The checkpoint, rewritten if need be, and what to tell of it.
    """
    made_with = origin.extra.get("config")
    if origin.path is None or made_with is None:
        return origin, ()
    changes = warm.changed(made_with, encode(flatten(task.config)))
    if task.source is None and not changes:
        return origin, ()
    target = task.run_dir / checkpoints.STAGING / "adapted"
    made = warm.rewrite(origin.path, target, trainer, schedule, changes)
    extra = checkpoints.read_extra(made.path)
    extra.get("stream", {}).pop("began", None)  # its batches may be others now
    return Origin(made.path, extra, made.step), made.notes


def doubts(task: Task, trainer: Any, peft_config: Any, draws: watching.Draws) -> Iterator[str]:
    """Why a run that goes on from a checkpoint may not be exact."""
    for name in draws.unsaved:
        yield f"its trainer's {name} is in no checkpoint and began anew at a restart"
    if draws.batch:
        yield "its batches are made with random numbers; a restart cannot repeat them"
    if getattr(trainer.args, "sync_ref_model", False):
        yield "sync_ref_model moves its reference, which began anew at a restart"
    if adapters.keeps_importances(task.config, peft_config):
        yield "AdaLoRA's importances of ranks are in no checkpoint and began anew"
    for callback in trainer.callback_handler.callbacks:
        known = type(callback).__module__.startswith(_STATELESS)
        if not known and not isinstance(callback, ExportableState) and vars(callback):
            name = type(callback).__name__
            yield f"callback {name} has no state() and began anew at a restart"
