"""What reward functions a config may have, checked in the cell that gives them."""

import functools
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rapidfire_jupyter.choices import short
from rapidfire_jupyter.errors import ConfigError

if TYPE_CHECKING:
    from rapidfire_jupyter.config import RFModelConfig
    from rapidfire_jupyter.trainer_types import TrainerType

# What TRL calls a reward function with, beside the columns of the data set.
GIVEN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")


def reward_list(model: "RFModelConfig") -> list[Any]:  # Any: functions, models and their names
    """The reward functions of a config, as a list."""
    rewards = model.reward_funcs
    if rewards is None:
        return []
    return list(rewards) if isinstance(rewards, list | tuple) else [rewards]


def reward_name(reward: Any) -> str:  # Any: a function, a model or its name
    """The name under which TRL logs a reward."""
    if isinstance(reward, str):
        return reward.rpartition("/")[2]
    config = getattr(reward, "config", None)
    if config is not None:
        return str(getattr(config, "_name_or_path", "")).rpartition("/")[2]
    while isinstance(reward, functools.partial):
        reward = reward.func
    return str(getattr(reward, "__name__", type(reward).__name__))


def check_rewards(model: "RFModelConfig", trainer: "TrainerType") -> None:
    """Refuse reward functions that TRL could not use, or could not tell apart.

    Raises:
        ConfigError: They are missing, of a wrong type, or do not fit reward_weights.
    """
    rewards = reward_list(model)
    if not trainer.rewarded:
        if rewards and trainer.cls is None:
            raise ConfigError(
                f"{trainer.name} takes no reward_funcs; leave them out, or train with GRPO or RLOO"
            )
        return
    sources = {"environment_factory", "rollout_func"} & set(model.trainer_kwargs or {})
    if not rewards and not sources:
        raise ConfigError(
            f"{trainer.name} needs a reward, got reward_funcs={model.reward_funcs!r}; give "
            "RFModelConfig(reward_funcs=[...])"
        )
    for reward in rewards:
        if not (isinstance(reward, str) or callable(reward)):
            raise ConfigError(
                "reward_funcs takes functions, sequence classifiers and their names, got "
                f"{short(reward)}"
            )
        _check_call(reward)
    _check_names(rewards)
    weights = getattr(model.training_args, "reward_weights", None)
    if isinstance(weights, Sequence) and rewards and len(weights) != len(rewards):
        raise ConfigError(
            f"reward_weights has {len(weights)} weights for {len(rewards)} reward functions; "
            "give one for each"
        )
    timeout = model.reward_timeout
    if timeout is not None and not timeout > 0:
        raise ConfigError(f"reward_timeout must be a number of seconds over 0, got {timeout}")


def _check_names(rewards: list[Any]) -> None:
    names = [reward_name(reward) for reward in rewards]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise ConfigError(
            f"{names.count(double)} reward functions are called {double!r}, so their means would "
            "be logged as one; define each with def and a name of its own"
        )


def _check_call(reward: Any) -> None:
    """A plain function must take what TRL gives it; the data set's columns come on top."""
    if isinstance(reward, str) or not inspect.isroutine(reward):
        return
    try:
        parameters = inspect.signature(reward).parameters.values()
    except (TypeError, ValueError):
        return  # written in C
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    missing = [name for name in GIVEN if name not in {p.name for p in parameters}]
    if missing:
        raise ConfigError(
            f"reward function {reward_name(reward)!r} is called with {', '.join(missing)} too; "
            "end its arguments with **kwargs"
        )
