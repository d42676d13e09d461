"""The learning rate that a clone will follow beside its parent's: what the clone form draws."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rapidfire_jupyter.changes import modify
from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.events import Event
from rapidfire_jupyter.state import State

MOST_STEPS = 200


@dataclass(frozen=True)
class Prepared:
    """What is known of the parent's schedule.

    Attributes:
        rows: Rows in an epoch; None if that is not known.
        step: Steps done.
    """

    steps_per_epoch: int
    total_steps: int
    rows: int | None
    step: int


def prepared(state: State, events: Iterable[Event], run: int) -> Prepared:
    """The parent's schedule, as its newest preparation found it.

    Raises:
        OpError: It was not prepared yet.
    """
    found = [e.data for e in events if e.kind == "run_prepared" and e.run == run]
    if not found:
        raise OpError(f"run {run} was not prepared yet; its schedule is known in the first minute")
    fit: Mapping[str, Any] = state.fit or {}  # Any: JSON values
    rows = fit.get("train_rows")
    return Prepared(
        steps_per_epoch=int(found[-1]["steps_per_epoch"]),
        total_steps=int(found[-1]["total_steps"]),
        rows=None if rows is None else int(rows) - int(found[-1].get("dropped") or 0),
        step=state.runs[run].step,
    )


def preview(
    config: RunConfig, changes: Mapping[str, Any], warm: bool, known: Prepared
) -> dict[str, Any]:
    """Learning rates by step, see `wire.Ask`. Any: JSON values.

    Raises:
        ConfigError: A change is none.
    """
    new = modify(config, changes)
    per_epoch = steps_per_epoch(new, config, known)
    total = total_steps(new, per_epoch)
    if not changes:
        per_epoch, total = known.steps_per_epoch, known.total_steps
    start = first_step(new, config, known, per_epoch) if warm else 0
    last = max(total, known.total_steps)
    steps = sorted({round(k * last / MOST_STEPS) for k in range(MOST_STEPS + 1)} | {start})
    before, after = rates(config, known.total_steps, steps), rates(new, total, steps)
    return {
        "steps": steps,
        "parent": [
            r if s <= known.total_steps else None for s, r in zip(steps, before, strict=True)
        ],
        "clone": [r if start <= s <= total else None for s, r in zip(steps, after, strict=True)],
        "from_step": start,
    }


def _value(config: RunConfig, name: str) -> Any:  # Any: a hyperparameter's value
    return getattr(config.model.training_args, name)


def _step_rows(config: RunConfig) -> int:
    batch, times = "per_device_train_batch_size", "gradient_accumulation_steps"
    return int(_value(config, batch)) * int(_value(config, times))


def steps_per_epoch(new: RunConfig, parent: RunConfig, known: Prepared) -> int:
    """Steps in an epoch of a clone, as the trainer counts them."""
    if _step_rows(new) == _step_rows(parent):
        return known.steps_per_epoch
    if known.rows is None or new.trainer.own_order or _value(new, "packing"):
        share = _step_rows(parent) / _step_rows(new)
        return max(1, math.ceil(known.steps_per_epoch * share))
    batch = int(_value(new, "per_device_train_batch_size"))
    whole = _value(new, "dataloader_drop_last")
    batches = known.rows // batch if whole else math.ceil(known.rows / batch)
    return max(1, math.ceil(batches / int(_value(new, "gradient_accumulation_steps"))))


def total_steps(config: RunConfig, per_epoch: int) -> int:
    """Steps of a whole training."""
    most = int(_value(config, "max_steps"))
    return most if most > 0 else math.ceil(float(_value(config, "num_train_epochs")) * per_epoch)


def first_step(new: RunConfig, parent: RunConfig, known: Prepared, per_epoch: int) -> int:
    """Where a warm clone joins: whole new steps of the rows its parent has seen."""
    epochs, within = divmod(known.step, known.steps_per_epoch)
    return epochs * per_epoch + within * _step_rows(parent) // _step_rows(new)


def rates(config: RunConfig, total: int, steps: Iterable[int]) -> list[float]:
    """Learning rates that a config's schedule prescribes at steps; flat where it reacts to losses.

    Made with transformers' own schedules, so it is what training will do.
    """
    import torch
    from transformers import get_scheduler

    rate = float(_value(config, "learning_rate"))
    weight = torch.zeros(1, dtype=torch.float32, requires_grad=True)
    warmup = float(_value(config, "warmup_steps") or 0)
    kind = _value(config, "lr_scheduler_type")
    name = str(getattr(kind, "value", kind))
    if name in ("reduce_lr_on_plateau", "greedy"):
        return [rate for _ in steps]
    scheduler = get_scheduler(
        name,
        optimizer=torch.optim.SGD([weight], lr=rate),
        num_warmup_steps=int(warmup) if warmup >= 1 else math.ceil(total * warmup),
        num_training_steps=total,
        scheduler_specific_kwargs=dict(_value(config, "lr_scheduler_kwargs") or {}),
    )
    factor = getattr(scheduler, "lr_lambdas", [lambda step: 1.0])[0]
    return [rate * float(factor(step)) for step in steps]
