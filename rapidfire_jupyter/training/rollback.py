"""Back to a run's last boundary, where memory ran out after it.

Nothing but the optimizer writes into weights and optimizer states. Until its next step begins they
are still what they were at the boundary, on the device where they are: no copy of them is needed.
What has moved on meanwhile is small, and remembered at each boundary: random streams, counters,
running metrics, flags. The trainer can be saved then as it was there; it cannot train on, since its
batches have moved on too.

Any: TRL trainers, and their states.
"""

import copy
import gc
import traceback
from dataclasses import dataclass
from typing import Any

from transformers.trainer_callback import ExportableState, TrainerCallback

from rapidfire_jupyter.arguments import optimizer_name
from rapidfire_jupyter.training import attributes
from rapidfire_jupyter.training.checkpoints import EXTRA_FIELDS, RUNNING_METRICS
from rapidfire_jupyter.training.context import rng_state, set_rng_state

_WITHIN_STEP = ("on_step_begin", "on_substep_end")


@dataclass(frozen=True)
class Mark:
    """What moves between two boundaries, besides weights and optimizer states.

    Attributes:
        rows: Rows that the run had logged.
        log: Length of the trainer's log.
    """

    step: int
    rows: int
    log: int
    tokens: Any
    streams: dict[str, Any]
    fields: dict[str, Any]
    loss: Any
    control: Any


def can_mark(trainer: Any) -> bool:
    """Whether a trainer can be brought back: nothing of it moves that we do not know.

    Optimizers that update within the backward pass, and callbacks with a state that change it
    within a step, cannot.
    """
    optim = optimizer_name(trainer.args.optim)
    if "layerwise" in optim or "lomo" in optim:
        return False
    return not any(
        isinstance(one, ExportableState)
        and any(getattr(type(one), n) is not getattr(TrainerCallback, n) for n in _WITHIN_STEP)
        for one in trainer.callback_handler.callbacks
    )


def mark(
    trainer: Any, rows: int, known: bool = True, streams: dict[str, Any] | None = None
) -> Mark:
    """Remember where a trainer is at a boundary.

    Args:
        rows: Rows that it has logged.
        known: Its class is one of those by name; of others all plain attributes are remembered.
        streams: The random streams there; None takes those of now.
    """
    state = trainer.state
    names = (*EXTRA_FIELDS, *RUNNING_METRICS)
    fields = {} if known else attributes.plain(trainer)
    return Mark(
        state.global_step,
        rows,
        len(state.log_history),
        state.num_input_tokens_seen,
        rng_state() if streams is None else streams,
        {**fields, **{n: _copied(getattr(trainer, n)) for n in names if hasattr(trainer, n)}},
        trainer._tr_loss.clone(),
        copy.copy(trainer.control),
    )


def go_back(trainer: Any, there: Mark, error: BaseException) -> None:
    """Bring a trainer, in which an error was raised, back to where it was, for being saved.

    What the error's frames hold, the failed step's tensors, is let go of.
    """
    let_go(error)
    trainer.model.zero_grad(set_to_none=True)
    gc.collect()
    trainer.state.num_input_tokens_seen = there.tokens
    del trainer.state.log_history[there.log :]
    for name, value in there.fields.items():
        setattr(trainer, name, value)
    trainer._tr_loss = there.loss
    vars(trainer.control).update(vars(there.control))
    set_rng_state(there.streams)


def let_go(error: BaseException) -> None:
    """Clear the frames of an error and of those that it came from."""
    one: BaseException | None = error
    while one is not None:
        traceback.clear_frames(one.__traceback__)
        one = one.__cause__ or one.__context__


def _copied(value: Any) -> Any:
    """A copy of what is nested in dicts and lists, but not of the numbers in it."""
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return list(value) if isinstance(value, list) else value
