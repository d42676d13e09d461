"""How much of each task a mixture holds: weights as they are given, and over a run's rows.

A config's `mixture` holds `tasks`, their names, and `weights`: a share for each of them in that
order. Once weights were changed while a run trained, they are a schedule: `[[0, shares], [row,
shares], ...]`, each pair from that row of the run on.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rapidfire_jupyter.arguments import closest
from rapidfire_jupyter.choices import is_number, short
from rapidfire_jupyter.errors import ConfigError

WHOLE = 10_000  # shares are kept to one in so many
TASKS, WEIGHTS = "mixture.tasks", "mixture.weights"  # their names in a flat config

Shares = list[float]


def shares(weights: object, tasks: Sequence[str]) -> Shares:
    """Weights as shares of one, in the order of the tasks.

    Args:
        weights: Numbers in the order of the tasks, or by their names.
        tasks: Names.

    Raises:
        ConfigError: They are not one number >= 0 for each task, or all 0.
    """
    numbers = _in_order(weights, tasks)
    for name, number in zip(tasks, numbers, strict=True):
        if not is_number(number) or not math.isfinite(number) or number < 0:
            raise ConfigError(
                f"the weight of task {name!r} must be a finite number >= 0, got {short(number)}"
            )
    total = sum(numbers)
    if not 0 < total < math.inf:
        raise ConfigError(f"one weight at least must be over 0, got {short(weights)}")
    exact = [number / total * WHOLE for number in numbers]
    parts = [int(one) for one in exact]
    nearest = sorted(range(len(parts)), key=lambda i: parts[i] - exact[i])
    for i in nearest[: WHOLE - sum(parts)]:
        parts[i] += 1
    for name, number, part in zip(tasks, numbers, parts, strict=True):
        if number and not part:
            raise ConfigError(
                f"the weight {number:g} of task {name!r} is under one row in {WHOLE:,}; give more, "
                "or 0 for none of it"
            )
    return [part / WHOLE for part in parts]


def _in_order(weights: object, tasks: Sequence[str]) -> list[Any]:  # Any: what should be numbers
    if isinstance(weights, Mapping):
        for name in weights:
            if name not in tasks:
                near = closest(str(name), tasks)
                known = ", ".join(map(repr, tasks))
                raise ConfigError(f"there is no task {name!r}; tasks: {known}{near}")
        lacking = [name for name in tasks if name not in weights]
        if lacking:
            raise ConfigError(f"weights lack task {lacking[0]!r}; give 0 for none of it")
        return [weights[name] for name in tasks]
    if not isinstance(weights, list | tuple):
        example = ", ".join("0.5" for _ in tasks)
        raise ConfigError(
            f"weights are a number for each task, [{example}] or by name, got {short(weights)}"
        )
    if len(weights) != len(tasks):
        raise ConfigError(
            f"weights need one number for each of {len(tasks)} tasks ({', '.join(tasks)}), got "
            f"{len(weights)}: {short(weights)}"
        )
    return list(weights)


def checked(mixture: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON values
    """A config's mixture with its weights as shares, or as a schedule of shares.

    Raises:
        ConfigError: The weights are none.
    """
    if set(mixture) != {"tasks", "weights"}:
        raise ConfigError(
            f"a mixture is set by run_fit, got {short(dict(mixture))}; give train_dataset=mix("
            '{"support": rows, "code": others}, weights=[0.5, 0.5])'
        )
    tasks, given = list(mixture["tasks"]), mixture["weights"]
    if not _is_schedule(given):
        return {"tasks": tasks, "weights": shares(given, tasks)}
    rows = [row for row, _ in given]
    whole = all(isinstance(row, int) for row in rows)
    if not whole or rows[0] != 0 or rows != sorted(rows):
        raise ConfigError(
            f"weights over time are [[0, shares], [row, shares], ...] in order, got {short(given)}"
        )
    return {"tasks": tasks, "weights": [[row, shares(one, tasks)] for row, one in given]}


def schedule(weights: Sequence[Any]) -> list[tuple[int, Shares]]:  # Any: numbers, or pairs
    """Shares with the row of the run from which on they hold; the first is row 0."""
    if _is_schedule(weights):
        return [(row, list(one)) for row, one in weights]
    return [(0, list(weights))]


def now(weights: Sequence[Any]) -> Shares:  # Any: numbers, or pairs
    """The shares that hold last."""
    return schedule(weights)[-1][1]


def at_start(weights: Sequence[Any]) -> Shares:  # Any: numbers, or pairs
    """The shares that a run began with."""
    return schedule(weights)[0][1]


def from_row(weights: Sequence[Any], row: int, new: Shares) -> list[Any]:  # Any: as above
    """Weights that change to `new` from a row of the run on, whatever was to come after it.

    Those that the run was given stay the first ones, even if no row was trained by them.
    """
    first, *others = schedule(weights)
    kept = [first, *((begin, one) for begin, one in others if begin < row)]
    if kept[-1][1] != new:
        kept.append((row, new))
    return [list(pair) for pair in kept] if len(kept) > 1 else first[1]


def parts(share: Sequence[float]) -> list[int]:
    """Shares as the smallest whole numbers of the same proportion."""
    numbers = [round(one * WHOLE) for one in share]
    common = math.gcd(*numbers)
    return [number // common for number in numbers]


def in_parts(weights: Sequence[Any]) -> list[tuple[int, list[int]]]:  # Any: as above
    """The schedule with shares as parts, as `data.mixing` takes it."""
    return [(row, parts(one)) for row, one in schedule(weights)]


def told(weights: Sequence[Any], tasks: Sequence[str]) -> str:  # Any: numbers, or pairs
    """The shares that hold last in words, such as "80 % support, 20 % code"."""
    pairs = zip(now(weights), tasks, strict=True)
    return ", ".join(f"{100 * share:g} % {name}" for share, name in pairs)


def _is_schedule(weights: object) -> bool:
    return (
        isinstance(weights, list | tuple)
        and bool(weights)
        and all(isinstance(one, list | tuple) and len(one) == 2 for one in weights)
    )
