"""What a rehearsal told, for further runs whose steps have the same shapes, memory and draws.

A rehearsal takes as long as a step and more. Runs of a grid differ mostly in numbers such as the
learning rate, which no step's shape depends on: the first of them rehearses for all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.encoding import same_key
from rapidfire_jupyter.training.estimates import Largest
from rapidfire_jupyter.training.watching import Draws

# What a step's shapes, memory and random draws do not depend on. Any other value parts rehearsals.
_ONLY_NUMBERS = frozenset(
    ["seed", "peft_config.lora_alpha"]
    + [
        f"training_args.{name}"
        for name in (
            "learning_rate",
            "lr_scheduler_type",
            "lr_scheduler_kwargs",
            "warmup_steps",
            "weight_decay",
            "adam_beta1",
            "adam_beta2",
            "adam_epsilon",
            "max_grad_norm",
            "min_tokens_per_batch",
            "num_train_epochs",
            "max_steps",
            "logging_steps",
            "eval_steps",
            "save_steps",
            "seed",
            "data_seed",
        )
    ]
)


@dataclass(frozen=True)
class Rehearsal:
    """What one told.

    Attributes:
        draws: Which parts of a step use random numbers.
        activations: Bytes kept for the backward pass.
        measured: Whether they were measured, or come from a formula.
        largest: The largest micro-batch.
    """

    draws: Draws
    activations: int
    measured: bool
    largest: Largest


class Rehearsals:
    """Those of one experiment's runs that went well. Used by one thread at a time."""

    def __init__(self) -> None:
        # Any: keys of same_key, valid as long as the config beside them is alive.
        self._kept: dict[Any, tuple[RunConfig, Rehearsal]] = {}

    def get(self, config: RunConfig, rehearse: Callable[[], Rehearsal]) -> Rehearsal:
        """The rehearsal of a run like this one; its own if there was none.

        Raises:
            Exception: Whatever the step raises; then the next such run rehearses again.
        """
        key = same_key(config, leaving_out=_ONLY_NUMBERS)
        if key not in self._kept:
            self._kept[key] = (config, rehearse())
        return self._kept[key][1]

    def knows(self, config: RunConfig) -> bool:
        """Whether there is a rehearsal of a run like this one."""
        return same_key(config, leaving_out=_ONLY_NUMBERS) in self._kept

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()
