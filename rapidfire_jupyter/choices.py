"""What a user gives instead of one value: a `List`, a `Range` of numbers, or a `Linked` value."""

import enum
import math
import numbers
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rapidfire_jupyter.errors import ConfigError


@dataclass(frozen=True, init=False)
class List:
    """Values to compare: a search makes at least one run of each."""

    values: tuple[object, ...]

    def __init__(self, values: Iterable[object], *more: object) -> None:
        if more:
            raise ConfigError(
                f"List takes one list of values; write List({short([values, *more])})"
            )
        if isinstance(values, (str, bytes, Mapping, set, frozenset)) or not isinstance(
            values, Iterable
        ):
            raise ConfigError(
                f"List needs values in an order, got {short(values)}; write List([...])"
            )
        owned = tuple(own(value) for value in values)
        if not owned:
            raise ConfigError("List must hold at least one value, got none; write List([a, b])")
        object.__setattr__(self, "values", owned)

    def __repr__(self) -> str:
        return f"List([{', '.join(map(short, self.values))}])"


@dataclass(frozen=True)
class Range:
    """Numbers from `start` to `end`, both included.

    Args:
        start: Lower end.
        end: Upper end, greater than `start`.
        dtype: "int" if only whole numbers are wanted; None means "int" if all numbers are ints.
        log: Draw evenly over the logarithm; not together with `step`.
        step: Only start, start + step, ... up to `end`; a grid needs it.
    """

    start: float
    end: float
    dtype: Literal["int", "float"] | None = None
    log: bool = False
    step: float | None = None

    def __post_init__(self) -> None:
        given = [self.start, self.end] + ([] if self.step is None else [self.step])
        for number in given:
            if not is_number(number) or not math.isfinite(number):
                raise ConfigError(
                    f"Range takes finite numbers, got {number!r}; write Range(1e-5, 1e-3)"
                )
        if not self.start < self.end:
            raise ConfigError(
                f"Range needs start < end, got start={self.start}, end={self.end}; swap them"
            )
        if self.dtype not in (None, "int", "float"):
            raise ConfigError(f"Range dtype must be 'int', 'float' or None, got {self.dtype!r}")
        if self.dtype == "int" and any(number != int(number) for number in given):
            raise ConfigError(
                f"Range of dtype 'int' needs whole numbers, got {given}; use dtype='float'"
            )
        if self.log and self.step is not None:
            raise ConfigError(
                f"Range takes log or step, got log=True and step={self.step}; drop one"
            )
        if self.log and self.start <= 0:
            raise ConfigError(f"Range with log=True needs start > 0, got {self.start}")
        if self.step is not None and self.step <= 0:
            raise ConfigError(f"Range step must be > 0, got {self.step}")
        whole = all(isinstance(number, numbers.Integral) for number in given)
        dtype = self.dtype or ("int" if whole else "float")
        object.__setattr__(self, "dtype", dtype)
        for name in ("start", "end", "step"):
            number = getattr(self, name)
            if number is not None:
                object.__setattr__(self, name, int(number) if dtype == "int" else float(number))


@dataclass(frozen=True)
class Linked:
    """A value that follows from others of the same config, such as a rate from the batch size.

    Args:
        function: Given the config, whose values it reads as `c["per_device_train_batch_size"]`, by
            the names that clone's changes have. Only the values it gives are stored.
    """

    function: Callable[[Any], object]  # Any: space.Chosen, which is above this module

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError(
                f"Linked takes a function of the config, got {short(self.function)}; write "
                'Linked(lambda c: 1e-4 * c["per_device_train_batch_size"] ** 0.5)'
            )

    def __repr__(self) -> str:
        return f"Linked({getattr(self.function, '__name__', '...')})"


def is_number(value: object) -> bool:
    """Whether a value is a real number; True and False are none."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def own(value: Any) -> Any:  # Any: whatever a user gives
    """A value with containers of its own and plain numbers; other objects stay what they are."""
    if isinstance(value, dict):
        return {key: own(one) for key, one in value.items()}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(own(one) for one in value)
    return plain(value)


def plain(value: Any) -> Any:  # Any: whatever a user gives
    """NumPy's numbers as Python's, a path as text, anything else as it is."""
    if isinstance(value, numbers.Real) and not isinstance(value, (bool, enum.Enum)):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def short(value: object) -> str:
    """A value as one line of an error message."""
    text = re.sub(r"\s+", " ", repr(value))
    return text if len(text) <= 80 else f"{text[:77]}..."
