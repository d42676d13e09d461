"""Reward functions at work: what they return is checked, and they may not take for ever.

Any: a user's functions, what they are given, and what they return.
"""

import asyncio
import functools
import math
import queue
import threading
from collections.abc import Callable
from typing import Any

import torch

from rapidfire_jupyter.errors import RapidFireError
from rapidfire_jupyter.rewards import reward_name
from rapidfire_jupyter.training.metrics import as_number


def checked(reward: Callable[..., Any], timeout_s: float | None) -> Callable[..., Any]:
    """A reward function that fails its run with a clear message where TRL would go on, or hang.

    Args:
        timeout_s: Longest time for one call; it is then made in a thread of its own, which cannot
            be ended and is left behind if it does not return. None calls it as TRL does.
    """
    from trl.trainer.utils import is_async_callable

    name = reward_name(reward)
    if is_async_callable(reward):

        async def call_async(**given: Any) -> list[Any]:
            try:
                result = await asyncio.wait_for(reward(**given), timeout_s)
            except TimeoutError:
                raise _late(name, timeout_s) from None
            except Exception as error:
                raise _raised(name, error) from error
            return _values(name, result, len(given["prompts"]))

        call: Callable[..., Any] = call_async
    else:

        def call_plain(**given: Any) -> list[Any]:
            try:
                result = (
                    reward(**given) if timeout_s is None else _in_time(reward, given, timeout_s)
                )
            except queue.Empty:
                raise _late(name, timeout_s) from None
            except Exception as error:
                raise _raised(name, error) from error
            return _values(name, result, len(given["prompts"]))

        call = call_plain
    wrapped = functools.wraps(reward)(call)
    wrapped.__name__ = name
    return wrapped


def guard(trainer: Any) -> None:
    """Fail a run whose reward functions all have no value for a row: it would learn from zeros."""
    original = getattr(trainer, "_calculate_rewards", None)
    if original is None:
        return

    def calculate(*args: Any, **kwargs: Any) -> Any:
        rewards = original(*args, **kwargs)  # (rows, functions); A2PO's are summed: (rows,)
        empty = torch.isnan(rewards).reshape(len(rewards), -1).all(dim=1)
        if bool(empty.any()):
            names = ", ".join(map(reward_name, trainer.reward_funcs))
            raise RapidFireError(
                f"no reward for {int(empty.sum())} of {len(empty)} completions: {names} gave None; "
                "at least one reward function must give a number for each"
            )
        return rewards

    trainer._calculate_rewards = calculate


def _in_time(reward: Callable[..., Any], given: dict[str, Any], timeout_s: float) -> Any:
    """Call in a thread of its own.

    Raises:
        queue.Empty: It did not return in time.
    """
    answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
    grad = torch.is_grad_enabled()

    def work() -> None:
        try:
            with torch.set_grad_enabled(grad):
                answers.put((reward(**given), None))
        except Exception as error:
            answers.put((None, error))

    threading.Thread(target=work, name=f"reward-{reward_name(reward)}", daemon=True).start()
    result, error = answers.get(timeout=timeout_s)
    if error is not None:
        raise error
    return result


def _values(name: str, result: Any, count: int) -> list[Any]:
    if hasattr(result, "tolist"):  # tensors and arrays
        result = result.tolist()
    if not isinstance(result, list | tuple):
        raise RapidFireError(
            f"reward function {name!r} must return a list of {count} numbers, got "
            f"{type(result).__name__}; return one number for each completion"
        )
    if len(result) != count:
        raise RapidFireError(
            f"reward function {name!r} returned {len(result)} rewards for {count} completions; "
            "return one number for each completion"
        )
    numbers = [None if value is None else as_number(value) for value in result]
    for place, (value, number) in enumerate(zip(result, numbers, strict=True)):
        if value is not None and (number is None or not math.isfinite(number)):
            raise RapidFireError(
                f"reward function {name!r} gave {value!r} for completion {place} of {count}; "
                "return a finite number, or None where it has no opinion"
            )
    return numbers


def _late(name: str, timeout_s: float | None) -> RapidFireError:
    return RapidFireError(
        f"reward function {name!r} did not return within reward_timeout={timeout_s} seconds; make "
        "it faster, or raise reward_timeout"
    )


def _raised(name: str, error: Exception) -> Exception:
    return RapidFireError(f"reward function {name!r} raised {type(error).__name__}: {error}")
