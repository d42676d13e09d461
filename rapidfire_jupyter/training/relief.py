"""What a run can do to need less memory: from its config to other values of it. Pure.

Where memory ran out in a step, its micro-batch becomes smaller and more of them are accumulated:
the same rows in each optimizer step. Where it ran out as completions were generated, fewer of them
are generated at a time, again for the same step; where TRL has no argument for that, and as the
last thing elsewhere, the cache of keys and values waits in host memory. Where it ran out in an
evaluation, that one's batch is halved.
With `memory="auto"` what costs less comes first: gradient checkpointing, an 8-bit optimizer,
activations in host memory, then smaller micro-batches, then a base in 4 bit. `memory="level1"` to
"level3" take these steps before anything is tried.
"""

import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rapidfire_jupyter.arguments import optimizer_name
from rapidfire_jupyter.changes import modify
from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.recorded import RFKTOConfig
from rapidfire_jupyter.training import memory
from rapidfire_jupyter.training.estimates import UNKNOWN, Largest
from rapidfire_jupyter.training.memory import Phase

LEAST_TOKENS = 16  # a micro-batch of fewer is one row in any case
LEVELS = ("level1", "level2", "level3")

_ANYHOW = 'a smaller or quantised model, stop other runs, or give run_fit device_memory="80%"'
_GENERATION_ADVICE = (
    "memory ran out while completions were generated, and fewer at a time are not to be had{why}: "
    f"use a smaller {{length}}, {{fewer}}{_ANYHOW}"
)


@dataclass(frozen=True)
class Relief:
    """Other values of a config.

    Attributes:
        changes: By dotted name. Any: hyperparameter values.
        text: What they are, in words that go after "goes on".
        anew: It cannot go on from a checkpoint.
    """

    changes: Mapping[str, Any]
    text: str
    anew: bool = False


@dataclass(frozen=True)
class Means:
    """What this machine, and how far the run has come, allow.

    Attributes:
        eight_bit: bitsandbytes is there.
        gpu: There is an accelerator to take activations and 4-bit weights from.
        cuda: It is one from which transformers can take a cache of keys and values.
        by_name: The model is loaded by its name, with `model_kwargs`.
        fresh: The run has no checkpoint, so optimizer and base may still change.
        largest: What is known of the micro-batch that memory did not suffice for.
    """

    eight_bit: bool
    gpu: bool
    cuda: bool
    by_name: bool
    fresh: bool
    largest: Largest = UNKNOWN


def means(by_name: bool, fresh: bool, largest: Largest = UNKNOWN) -> Means:
    """The means there are here."""
    found = importlib.util.find_spec("bitsandbytes") is not None
    cuda = torch.cuda.is_available()
    return Means(found, memory.takes_activations(), cuda, by_name, fresh, largest)


def next_relief(config: RunConfig, phase: Phase, auto: bool, have: Means) -> Relief | None:
    """What to try where memory ran out; None if nothing is left.

    Args:
        auto: Whatever helps, in the documented order; else smaller batches only.
    """
    for step in (_AUTO if auto else _ALWAYS).get(phase, ()):
        found = step(config, have)
        if found is not None:
            return found
    return None


def advice(config: RunConfig, phase: Phase, have: Means) -> str:
    """What to do about a run for which nothing is left to try."""
    args, why, fewer = config.model.training_args, "", ""
    if phase != "generation":
        tips = _tips(config, have)
        if have.largest.room == 0:
            return f"weights and states alone are too much: use {tips}{_ANYHOW}"
        if getattr(args, "max_tokens_per_batch", None) and args.min_tokens_per_batch:
            tips = f"a smaller min_tokens_per_batch, {tips}"
        return (
            "memory ran out and the micro-batch is as small as it gets: use "
            f"{tips}a smaller max_length, {_ANYHOW}"
        )
    if hasattr(args, "num_generations"):
        fewer = "fewer num_generations, "
    elif config.trainer.own_order:
        why = f" ({config.trainer.name} generates those of a step at once)"
        fewer = "fewer rows per step (per_device_train_batch_size), "
    length = "max_completion_length" if hasattr(args, "max_completion_length") else "max_new_tokens"
    return _GENERATION_ADVICE.format(why=why, length=length, fewer=fewer)


def _tips(config: RunConfig, have: Means) -> str:
    """What would help and is not taken yet, in words."""
    tips = []
    if have.largest.room == 0 and config.model.peft_config is None:
        tips.append("peft_config=RFLoraConfig()")
    if have.largest.room != 0 and _checkpointing(config, have):
        tips.append("gradient_checkpointing=True")
    if _is_adamw(config):
        package = "" if have.eight_bit else " (pip install bitsandbytes)"
        tips.append(f"optim='adamw_8bit'{package}")
    return "".join(f"{tip}, " for tip in tips)


def _is_adamw(config: RunConfig) -> bool:
    """Whether the optimizer has states of 32 bit that `adamw_8bit` would have of 8."""
    return optimizer_name(config.model.training_args.optim) in ("adamw_torch", "adamw_torch_fused")


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
    if not (have.eight_bit and have.fresh and _is_adamw(config)):
        return None
    return Relief({"training_args.optim": "adamw_8bit"}, "with an 8-bit optimizer", True)


def _offloading(config: RunConfig, have: Means) -> Relief | None:
    args = config.model.training_args
    if not have.gpu or getattr(args, "activation_offloading", True):  # True: it has none
        return None
    return Relief({"training_args.activation_offloading": True}, "with activations in host memory")


def _micro_batch(config: RunConfig, have: Means) -> Relief | None:
    if have.largest.room == 0:  # not for any micro-batch
        return None
    by_tokens = getattr(config.model.training_args, "max_tokens_per_batch", None)
    if by_tokens or (isinstance(config.model.training_args, RFKTOConfig) and have.largest.tokens):
        return fewer_tokens(config, have.largest)  # of KTO: its loss is of whole micro-batches
    return smaller_micro_batch(config, have.largest.room)


def _generation(config: RunConfig, have: Means) -> Relief | None:
    return smaller_generation(config)


def _cache(config: RunConfig, have: Means) -> Relief | None:
    args = config.model.training_args
    known = getattr(args, "cache_implementation", "none to be had")
    if known is not None or not have.cuda or getattr(args, "use_vllm", False):
        return None
    changes = {"training_args.cache_implementation": "offloaded"}
    return Relief(changes, "with the cache of keys and values in host memory as it generates")


def _eval_batch(config: RunConfig, have: Means) -> Relief | None:
    return smaller_eval_batch(config)


def _one_row(config: RunConfig, have: Means) -> Relief | None:
    found = None
    if getattr(config.model.training_args, "max_tokens_per_batch", None):
        return None
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
_Steps = dict[Phase, tuple[Callable[[RunConfig, Means], Relief | None], ...]]
_ALWAYS: _Steps = {
    "training": (_micro_batch,),
    "generation": (_generation, _cache),
    "evaluation": (_eval_batch,),
}
_AUTO: _Steps = {
    "training": (_checkpointing, _optimizer, _offloading, _micro_batch, _four_bit),
    "generation": (_generation, _cache, _four_bit),
    "evaluation": (_eval_batch,),
}


def smaller_micro_batch(config: RunConfig, room: float | None = None) -> Relief | None:
    """A smaller micro-batch with the same rows per step: 5 x 2 becomes 2 x 5.

    The next smaller one, or one that fits where it is known for which share of it there is room.
    GRPO and RLOO: with the same completions per generation, as TRL demands.
    """
    args = config.model.training_args
    size, times = args.per_device_train_batch_size, args.gradient_accumulation_steps
    whole = size * times
    generated = _generated(args)
    divergence = _has_divergence(config)
    least = 2 if divergence else 1
    most = size - 1 if room is None else min(size - 1, max(least, int(size * room)))
    for less in range(most, least - 1, -1):
        if whole % less or (generated is not None and generated % less):
            continue
        more = whole // less
        changes = {"per_device_train_batch_size": less, "gradient_accumulation_steps": more}
        if generated is not None and "steps_per_generation" in args.given:
            changes["steps_per_generation"] = generated // less
        text = f"with micro-batches of {less} x {more} in place of {size} x {times} rows"
        if _sums_gradients(config):
            text += f", whose gradients TRL's {config.trainer.name} adds up and does not average"
        if divergence:
            text += ", each with a divergence of its own in KTO's loss"
        return Relief({f"training_args.{name}": value for name, value in changes.items()}, text)
    return None


def _has_divergence(config: RunConfig) -> bool:
    """Whether a loss holds the mean divergence of its micro-batch, which TRL wants of two rows."""
    args = config.model.training_args
    return isinstance(args, RFKTOConfig) and args.loss_type != "apo_zero_unpaired"


def _sums_gradients(config: RunConfig) -> bool:
    """Whether a step's gradient grows with its micro-batches: OnlineDPO has its own training_step.

    Adam takes no notice of a gradient's size, but clipping by max_grad_norm does.
    """
    mro = config.trainer.cls.__mro__ if config.trainer.cls is not None else ()
    return any(one.__name__ == "OnlineDPOTrainer" for one in mro)


def fewer_tokens(config: RunConfig, largest: Largest = UNKNOWN) -> Relief | None:
    """Half the tokens of a micro-batch, or as many as there is known to be room for.

    A run without a budget is given one. They are at least `min_tokens_per_batch`. None if they are
    no more now, or if the largest micro-batch is one row, or one pair, which no budget makes
    smaller.
    """
    args = config.model.training_args
    budget = int(args.max_tokens_per_batch or largest.tokens)
    now = min(budget, largest.tokens or budget)
    least = args.min_tokens_per_batch or LEAST_TOKENS
    less = max(least, int(now * (0.5 if largest.room is None else largest.room)))
    alone = 0 < largest.rows <= (2 if config.trainer.pairs else 1)
    if alone or less >= now:
        return None
    text = f"with micro-batches of {less} in place of {budget} tokens"
    return Relief({"training_args.max_tokens_per_batch": less}, text)


def smaller_generation(config: RunConfig) -> Relief | None:
    """The next smaller number of completions that are generated at a time.

    GRPO and RLOO generate the whole completions of some prompts, in whole micro-batches, and may do
    so several times for a step: its prompts and their completions stay as many as they were.
    Distillation generates those of a step at once, and TRL has no argument for fewer; GKD and
    OnlineDPO generate a micro-batch at a time.
    """
    args = config.model.training_args
    group = getattr(args, "num_generations", None)
    if not config.trainer.own_order:
        return smaller_micro_batch(config)
    if not group or not hasattr(args, "steps_per_generation"):
        return None
    size, times = args.per_device_train_batch_size, args.gradient_accumulation_steps
    now = _generated(args) or size * times
    for less in range(now - group, 0, -group):
        if now % less or (size * times % less and less % (size * times)):
            continue
        rows = math.gcd(size, less)
        changes: dict[str, Any] = {}
        if rows != size:
            changes["per_device_train_batch_size"] = rows
            changes["gradient_accumulation_steps"] = size * times // rows
        if "steps_per_generation" in args.given:
            changes["steps_per_generation"] = less // rows
        else:
            changes["generation_batch_size"] = less
        return Relief(
            {f"training_args.{name}": value for name, value in changes.items()},
            f"generating {less} in place of {now} completions at a time",
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
    """Half the batch of evaluations, in whole groups of completions; None if it is one."""
    args = config.model.training_args
    size, group = args.per_device_eval_batch_size, 1
    if config.trainer.rewarded:
        group = args.num_generations_eval or args.num_generations
    less = size // 2 // group * group
    if not less:
        return None
    text = f"with evaluation batches of {less} in place of {size} rows"
    return Relief({"training_args.per_device_eval_batch_size": less}, text)
