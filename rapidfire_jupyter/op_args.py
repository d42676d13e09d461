"""What a person gives an op, checked in the cell: from arguments to an `Op`."""

from collections.abc import Mapping, Sequence
from typing import Any

from rapidfire_jupyter.changes import modify
from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.conflicts import check_together
from rapidfire_jupyter.errors import ConfigError, OpError
from rapidfire_jupyter.mixture import TASKS, shares
from rapidfire_jupyter.ops import Op
from rapidfire_jupyter.texts import is_text

MOST_WEIGHT = 1000
_LONGER = ("num_train_epochs", "max_steps")


def resume(run: int, longer: Mapping[str, Any], config: RunConfig | None, by: str) -> Op:
    """See `Experiment.resume`. Any: hyperparameter values.

    Args:
        config: The run's live config; None where there is none, and the op will be refused.
    """
    other = sorted(set(longer) - set(_LONGER))
    if other:
        raise ConfigError(
            f"resume takes num_train_epochs or max_steps only, got {other[0]}; clone the run to "
            "change it"
        )
    _check_changes(config, longer)
    return Op("resume", run, longer, by)


def boost(run: int, weight: Any, by: str) -> Op:
    """See `Experiment.boost`. Any: of a person."""
    number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not number or not 0 < weight <= MOST_WEIGHT:
        raise OpError(f"weight must be a number over 0 and at most {MOST_WEIGHT}, got {weight!r}")
    return Op("boost", run, {"weight": float(weight)}, by)


def mix(
    run: int,
    weights: Mapping[str, float] | Sequence[float],
    known: Mapping[str, Any],
    by: str,
) -> Op:
    """See `Experiment.mix`. Any: the run's config as JSON values."""
    if TASKS not in known:
        return Op("mix", run, {"weights": []}, by)  # it is refused, and says why
    return Op("mix", run, {"weights": shares(weights, known[TASKS])}, by)


def clone(
    run: int,
    changes: Any,
    warm: bool,
    name: str | None,
    again: bool,
    config: RunConfig | None,
    by: str,
) -> Op:
    """See `Experiment.clone`. Any: of a person.

    Args:
        config: As for `resume`.
    """
    changes = {} if changes is None else changes
    if name is not None and not is_text(name):
        raise OpError(f"a clone's name is a text, got {name!r}")
    if not isinstance(changes, Mapping) or not all(isinstance(key, str) for key in changes):
        raise OpError(
            f"clone takes its changes by name, got {changes!r:.80}; write "
            f'clone({run}, {{"learning_rate": 1e-4}})'
        )
    _check_changes(config, changes)
    args = {"changes": dict(changes), "warm": bool(warm), "again": again, "name": name}
    return Op("clone", run, args, by)


def _check_changes(config: RunConfig | None, changes: Mapping[str, Any]) -> None:
    if changes and config is not None:
        check_together(modify(config, changes))
