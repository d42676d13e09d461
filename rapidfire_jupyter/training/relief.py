"""What a run can do to need less memory: from its config to other values of it. Pure.

Where memory ran out in a step, its micro-batch becomes smaller and more of them are accumulated:
the same rows in each optimizer step. Where it ran out in an evaluation, that one's batch is halved.
With `memory="auto"` what costs less comes first: gradient checkpointing, an 8-bit optimizer,
activations in host memory, then smaller micro-batches, then a base in 4 bit. `memory="level1"` to
"level3" take these steps before anything is tried.
"""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rapidfire_jupyter.changes import modify
from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.training.memory import Phase

LEVELS = ("level1", "level2", "level3")

ADVICE = (
    "memory ran out and the micro-batch is as small as it gets: use gradient_checkpointing=True, a "
    "smaller max_length, optim='adamw_8bit', a smaller or quantised model, "
    'stop other runs, or give run_fit device_memory="80%"'
)


@dataclass(frozen=True)
class Relief:
    """Other values of a config.

    Attributes:
        changes: By dotted name. Any: hyperparameter values.
        text: What they are, in words that go after "goes on".
        other: Its numbers are others than the config's own would be, even from the start.
    """

    changes: Mapping[str, Any]
    text: str
    other: bool = False


@dataclass(frozen=True)
class Means:
    """What this machine, and how far the run has come, allow.

    Attributes:
        eight_bit: bitsandbytes is there.
        gpu: There is an accelerator to take activations and 4-bit weights from.
        by_name: The model is loaded by its name, with `model_kwargs`.
        fresh: The run has no checkpoint, so optimizer and base may still change.
    """

    eight_bit: bool
    gpu: bool
    by_name: bool
    fresh: bool


def means(by_name: bool, fresh: bool) -> Means:
    """The means there are here."""
    found = importlib.util.find_spec("bitsandbytes") is not None
    return Means(found, torch.accelerator.is_available(), by_name, fresh)


def next_relief(config: RunConfig, phase: Phase, auto: bool, have: Means) -> Relief | None:
    """What to try where memory ran out; None if nothing is left.

    Args:
        auto: Whatever helps, in the documented order; else smaller batches only.
    """
    if phase == "evaluation":
        return smaller_eval_batch(config)
    if phase == "training":
        for step in _STEPS if auto else (_micro_batch,):
            found = step(config, have)
            if found is not None:
                return found
    return None


def at_level(config: RunConfig, level: str, have: Means) -> RunConfig:
    """A config with what a level stands for, but for what the user gave.

    level1: gradient checkpointing. level2: an 8-bit optimizer too, and activations in host memory
    on a GPU. level3: micro-batches of one row too, and a base in 4 bit on a GPU.

    Raises:
        ConfigError: It needs a package that is not installed.
    """
    rank = LEVELS.index(level) + 1
    if rank >= 2 and not have.eight_bit:
        raise ConfigError(
            f"memory={level!r} takes an 8-bit optimizer, which needs bitsandbytes: "
            'pip install bitsandbytes, or use memory="level1" or "auto"'
        )
    given = {f"training_args.{name}" for name in config.model.training_args.given}
    given |= {f"model_kwargs.{name}" for name in config.model.model_kwargs or {}}
    wanted = [_checkpointing, _optimizer, _offloading][: 1 if rank == 1 else 3]
    if rank == 3:
        wanted += [_one_row, _four_bit]
    for step in wanted:
        found = step(config, have)
        if found is not None and not given & set(found.changes):
            config = modify(config, found.changes)
    return config


def _checkpointing(config: RunConfig, have: Means) -> Relief | None:
    args = config.model.training_args
    new = args.given.get("activation_checkpointing") is not None  # transformers' newer name
    name = "activation_checkpointing" if new else "gradient_checkpointing"
    if getattr(args, name):
        return None
    return Relief({f"training_args.{name}": True}, "with gradient checkpointing")


def _optimizer(config: RunConfig, have: Means) -> Relief | None:
    name = config.model.training_args.optim
    name = str(getattr(name, "value", name))
    if not (have.eight_bit and have.fresh and name in ("adamw_torch", "adamw_torch_fused")):
        return None
    return Relief({"training_args.optim": "adamw_8bit"}, "with an 8-bit optimizer", True)


def _offloading(config: RunConfig, have: Means) -> Relief | None:
    args = config.model.training_args
    if not have.gpu or getattr(args, "activation_offloading", True):  # True: it has none
        return None
    return Relief({"training_args.activation_offloading": True}, "with activations in host memory")


def _micro_batch(config: RunConfig, have: Means) -> Relief | None:
    return smaller_micro_batch(config)


def _one_row(config: RunConfig, have: Means) -> Relief | None:
    found = None
    while (smaller := smaller_micro_batch(config)) is not None:
        config, found = modify(config, smaller.changes), smaller
    return found


def _four_bit(config: RunConfig, have: Means) -> Relief | None:
    model = config.model
    known = "quantization_config" in (model.model_kwargs or {})
    can = have.eight_bit and have.gpu and have.fresh and have.by_name
    if known or model.peft_config is None or not can:
        return None
    return Relief(
        {"model_kwargs": {**(model.model_kwargs or {}), "quantization_config": dict(_NF4)}},
        "on a base in 4 bit (QLoRA)",
        True,
    )


# QLoRA's own settings (Dettmers et al. 2023, arXiv:2305.14314).
_NF4 = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "bnb_4bit_compute_dtype": "bfloat16",
}
_STEPS: tuple[Callable[[RunConfig, Means], Relief | None], ...] = (
    _checkpointing,
    _optimizer,
    _offloading,
    _micro_batch,
    _four_bit,
)


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
