"""What `run_fit` was asked for: its arguments as they were given, checked one by one.

Any: see `Experiment.run_fit`.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.oversight import Oversight
from rapidfire_jupyter.training import budget as budgets
from rapidfire_jupyter.training import relief


@dataclass(frozen=True)
class Request:
    """The arguments of `run_fit`, as given. Any: see there."""

    config_group: Any
    create_model: Any
    train: Any
    eval: Any
    num_chunks: int | None
    chunk_size: int | None
    seed: int
    trainer_type: str | type | None
    slice_steps: int | None
    slice_seconds: float | None
    checkpoint_seconds: float
    keep_checkpoints: int
    eval_rows: int
    generate_rows: int
    max_new_tokens: int
    eval_budget: float
    isolation: str
    weight: float
    oversight: Oversight
    strategy: Any
    stratify: str | None
    memory: str | None = None
    device_memory: int | str | None = None
    host_memory: int | str | None = None


def check_numbers(request: Request) -> None:
    """Refuse numbers and names that cannot be.

    Raises:
        ConfigError: One is.
    """
    whole = {
        "seed": (request.seed, 0),
        "slice_steps": (request.slice_steps, 1),
        "keep_checkpoints": (request.keep_checkpoints, 1),
        "eval_rows": (request.eval_rows, 0),
        "generate_rows": (request.generate_rows, 0),
        "max_new_tokens": (request.max_new_tokens, 1),
    }
    for name, (value, least) in whole.items():
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or value < least
        ):
            raise ConfigError(
                f"{name} must be a whole number >= {least}, got {value!r}{_as_whole(value)}"
            )
    positive = {
        "slice_seconds": request.slice_seconds,
        "checkpoint_seconds": request.checkpoint_seconds,
        "eval_budget": request.eval_budget,
        "weight": request.weight,
    }
    for name, number in positive.items():
        good = isinstance(number, int | float) and not isinstance(number, bool)
        if number is not None and not (good and math.isfinite(number) and number > 0):
            raise ConfigError(f"{name} must be a number over 0, got {number!r}")
    if request.seed >= 2**32:
        raise ConfigError(f"seed must be less than 2**32 (numpy's limit), got {request.seed}")
    if request.isolation not in ("mark", "cells"):
        raise ConfigError(f'isolation must be "mark" or "cells", got {request.isolation!r}')


def _as_whole(value: object) -> str:
    return f"; write {int(value)}" if isinstance(value, float) and value.is_integer() else ""


def relieved(configs: list[RunConfig], request: Request) -> list[RunConfig]:
    """The configs with what `memory="level1"` to "level3" stand for."""
    level = request.memory
    if level is None or level == "auto":
        return configs
    if level not in relief.LEVELS:
        known = ", ".join(map(repr, ("auto", *relief.LEVELS)))
        raise ConfigError(f"memory must be one of {known} or None, got {level!r}")
    have = relief.means(request.create_model is None, True)
    return [relief.at_level(config, level, have) for config in configs]


def device_budget(request: Request) -> budgets.Budget | None:
    """What the device and the host may hold; None without a limit."""
    if request.device_memory is None:
        if request.host_memory is not None:
            raise ConfigError("host_memory is for what device_memory has no room for; give both")
        return None
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    return budgets.budget(request.device_memory, request.host_memory, device)
