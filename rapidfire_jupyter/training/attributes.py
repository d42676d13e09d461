"""What a trainer keeps in its own attributes: numbers, texts, and lists and dicts of them.

Trainers given as classes, the user's and those of trl.experimental, count and gather under names
that nobody knows. Whoever looks at a trainer puts all of them back, and what moves while such a
trainer trains is kept in its checkpoints. Tensors and other objects are left to the trainer; of
those that a step changes it is told that no checkpoint has them.

Any: TRL trainers, and values of their attributes.
"""

import copy
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rapidfire_jupyter.training.checkpoints import EXTRA_FIELDS, RUNNING_METRICS

MOST = 100_000  # values in an attribute: what has more is data, not a state

_IN_ANY_CASE = (*EXTRA_FIELDS, *RUNNING_METRICS, "_tr_loss")
_MADE_ANEW = ("_buffered_inputs",)  # completions: restarts come where new ones are sampled
_CONTAINERS = (dict, list, tuple, deque)


def plain(trainer: Any) -> dict[str, Any]:
    """Copies of a trainer's plain attributes."""
    return {n: copy.deepcopy(v) for n, v in vars(trainer).items() if _is_plain(v)}


def put_back(trainer: Any, before: Mapping[str, Any], copies: Mapping[str, Any]) -> None:
    """Give a trainer the attributes that it had.

    Args:
        before: All of them, as `vars` gave them.
        copies: As `plain` gave them, for those that were changed in place.
    """
    for name in [name for name in vars(trainer) if name not in before]:
        del trainer.__dict__[name]
    for name, value in before.items():
        changed = name in copies and copies[name] != value
        trainer.__dict__[name] = copies[name] if changed else value


def objects(trainer: Any) -> dict[str, tuple[Any, int]]:
    """A trainer's other attributes, and of tensors how often they were written into."""
    mine = {n: v for n, v in vars(trainer).items() if n not in _MADE_ANEW and not _is_plain(v)}
    return {n: (v, getattr(v, "_version", 0)) for n, v in mine.items()}


def replaced(trainer: Any, before: Mapping[str, tuple[Any, int]]) -> tuple[str, ...]:
    """Names of other attributes that are other objects now, or tensors that were written into.

    Args:
        before: As `objects` gave them.
    """
    return tuple(
        name
        for name, (value, written) in objects(trainer).items()
        if name not in before or before[name][0] is not value or before[name][1] != written
    )


def moved(trainer: Any, before: Mapping[str, Any]) -> dict[str, Any]:
    """The plain attributes that are not what they were, for JSON to hold.

    Those that every checkpoint has are left out.

    Args:
        before: As `plain` gave them when training began.
    """
    mine = {n: v for n, v in vars(trainer).items() if n not in _IN_ANY_CASE}
    found = {n: v for n, v in mine.items() if n not in before or before[n] != v}
    return {n: _as_json(v) for n, v in found.items() if _is_plain(v)}


def give(trainer: Any, kept: Mapping[str, Any]) -> None:
    """Give a new trainer what `moved` found of an earlier one."""
    for name, value in kept.items():
        setattr(trainer, name, _filled(getattr(trainer, name, None), value))


def _is_plain(value: Any) -> bool:
    """Whether a value is numbers, texts, and containers of them, and not too many."""
    left = [value]
    for seen in range(MOST):
        if not left:
            return True
        one = left.pop()
        if isinstance(one, _CONTAINERS):
            if len(left) + len(one) + seen > MOST:
                return False
            if isinstance(one, dict):
                if not all(isinstance(key, str) for key in one):
                    return False
                one = one.values()
            left.extend(one)
        elif not (isinstance(one, int | float | str | None) or _is_number(one)):
            return False
    return False


def _is_number(value: Any) -> bool:
    """Whether a value is a number of torch or numpy."""
    if isinstance(value, torch.Tensor):
        return value.dim() == 0 and not value.requires_grad
    return isinstance(value, np.generic)


def _as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple | deque):
        return [_as_json(one) for one in value]
    return value.item() if _is_number(value) else value


def _filled(there: Any, value: Any) -> Any:
    """A value as what there is: a container with a default or a greatest length, a tensor."""
    if isinstance(there, dict) and isinstance(value, dict):
        filled = {key: _filled(there.get(key), one) for key, one in value.items()}
        there.clear()
        there.update(filled)
        return there
    if isinstance(there, deque):
        there.clear()
        there.extend(value)
        return there
    if isinstance(there, torch.Tensor):
        return torch.full_like(there, value)
    return tuple(value) if isinstance(there, tuple) else value
