"""What a run can do to need less memory: from its config to other values of it. Pure.

Where memory ran out in a step, its micro-batch becomes smaller and more of them are accumulated:
the same rows in each optimizer step. Where it ran out in an evaluation, that one's batch is halved.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.training.memory import Phase

ADVICE = (
    "memory ran out and the micro-batch is as small as it gets: use gradient_checkpointing=True, a "
    "smaller max_length, optim='adamw_8bit', a smaller or quantised model, or stop other runs"
)


@dataclass(frozen=True)
class Relief:
    """Other values of a config.

    Attributes:
        changes: By dotted name. Any: hyperparameter values.
        text: What they are, in words that go after "goes on".
        other_rows: Steps may meet other rows than before.
    """

    changes: Mapping[str, Any]
    text: str
    other_rows: bool = False


def smaller(config: RunConfig, phase: Phase) -> Relief | None:
    """The next smaller batch for the phase in which memory ran out; None if there is none."""
    if phase == "training":
        return smaller_micro_batch(config)
    return smaller_eval_batch(config) if phase == "evaluation" else None


def smaller_micro_batch(config: RunConfig) -> Relief | None:
    """The next smaller micro-batch with the same rows per step: 5 x 2 becomes 2 x 5.

    GRPO and RLOO: with the same completions per generation, as TRL demands.
    """
    args = config.model.training_args
    size, times = args.per_device_train_batch_size, args.gradient_accumulation_steps
    whole = size * times
    generated = _generated(args)
    for less in range(size - 1, 0, -1):
        if whole % less or (generated is not None and generated % less):
            continue
        more = whole // less
        changes = {"per_device_train_batch_size": less, "gradient_accumulation_steps": more}
        if generated is not None and "steps_per_generation" in args.given:
            changes["steps_per_generation"] = generated // less
        return Relief(
            {f"training_args.{name}": value for name, value in changes.items()},
            f"with micro-batches of {less} x {more} in place of {size} x {times} rows",
            getattr(args, "train_sampling_strategy", "random") != "random"
            or bool(getattr(args, "dataloader_drop_last", False)),
        )
    return None


def _generated(args: Any) -> int | None:  # Any: a recorded TRL config
    """Completions of one generation, where a trainer that generates was told how many."""
    given = args.given
    if given.get("generation_batch_size"):
        return int(given["generation_batch_size"])
    if given.get("steps_per_generation"):
        return int(given["steps_per_generation"]) * int(args.per_device_train_batch_size)
    return None


def smaller_eval_batch(config: RunConfig) -> Relief | None:
    """Half the batch of evaluations; None if it is one row."""
    size = config.model.training_args.per_device_eval_batch_size
    if size <= 1:
        return None
    text = f"with evaluation batches of {size // 2} in place of {size} rows"
    return Relief({"training_args.per_device_eval_batch_size": size // 2}, text)
