"""Clones of the best runs with somewhat other hyperparameters, and children of two of them.

Its simple form is the explore step of population based training (Jaderberg et al. 2017), which
multiplies a hyperparameter by 0.8 or 1.2; its genetic form takes each hyperparameter from one of
two parents.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rapidfire_jupyter.changes import COLD_ARGUMENTS
from rapidfire_jupyter.comparison import (
    Mode,
    barrier,
    cohort,
    learning_rate,
    pick_metric,
    score_at,
)
from rapidfire_jupyter.decisions import Decision, Seen, ask, decided, note, stop
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.ops import Op
from rapidfire_jupyter.state import ACTIVE, Run

RATE = "training_args.learning_rate"
# Fields that a warm clone keeps; a child that takes another value of them starts from step 0.
_START = ("model_name", "model_kwargs", "model_type", "tokenizer", "tokenizer_kwargs", "seed")
_OWN = ("trainer_type", "name")


@dataclass(frozen=True)
class CloneBest:
    """Settings of cloning the best runs.

    Attributes:
        top: How many runs are cloned.
        at: Fractions of the schedule at which it happens, each once.
        spread: Each clone's learning rate is its parent's times 1 - spread or 1 + spread; 0 keeps
            it.
        both: Two clones of each, one either way; else one, the way drawn by the seed.
        crossed: Further children that take each hyperparameter from one of two of the best.
        warm: Clones go on from the parent's weights; crossed children only if their changes allow.
        changes: Set in every clone, by dotted name; a spread of the learning rate comes on top.
        replace: Stop as many of the worst active runs as clones are made.
    """

    top: int = 2
    at: tuple[float, ...] = (0.5,)
    spread: float = 0.2
    both: bool = True
    crossed: int = 0
    warm: bool = True
    changes: Mapping[str, Any] = field(default_factory=dict)  # Any: hyperparameter values
    replace: bool = False
    metric: str | None = None
    mode: Mode | None = None
    name: str = "clone best"

    def __post_init__(self) -> None:
        if self.top < 1 or self.crossed < 0 or (self.crossed and self.top < 2):
            raise ConfigError(
                f"top must be >= 1, and >= 2 for crossed children, got top={self.top} and "
                f"crossed={self.crossed}"
            )
        if not 0 <= self.spread < 1 or any(not 0 < at <= 1 for at in self.at):
            raise ConfigError(
                f"spread must be >= 0 and < 1 and at over 0 up to 1, got {self.spread} and "
                f"{self.at}; 0.2 makes rates of 80 % and 120 %"
            )


def decide(policy: CloneBest, seen: Seen) -> list[Decision]:
    """Clone at the first barrier that all runs have reached and that was not used yet."""
    for at in sorted(policy.at):
        key = f"at {at:g}"
        if decided(seen.memory, policy.name, key):
            continue
        together = cohort(seen.state, at)
        return [] if together is None else breed(policy, seen, key, at, together)
    return []


def breed(
    policy: CloneBest, seen: Seen, key: str, at: float, together: Sequence[Run]
) -> list[Decision]:
    """Clones of the best of some runs at a fraction of their schedules.

    Args:
        policy: What to clone, and how.
        seen: What is known.
        key: Of these decisions.
        at: Fraction of the schedule at which the runs are compared.
        together: Runs to choose from; all have reached it.
    """
    metric = pick_metric(seen.rows, policy.metric)
    scores = {}
    for run in together:
        rows = seen.rows.get(run.id, ())
        score = score_at(run, rows, metric, barrier(run, at), policy.mode)
        if score is not None and math.isfinite(score):
            scores[run.id] = score
    order = sorted((r for r in together if r.id in scores), key=lambda r: (scores[r.id], r.id))
    best = order[: policy.top]
    if not best:
        return [note(policy.name, key, (), f"no run has a finite {metric} at {at:.3g}")]
    draw = Random(f"{seen.seed} {policy.name} {key}")
    found = []
    for rank, run in enumerate(best, start=1):
        for changes, label in _variants(policy, seen, run, draw):
            reason = f"run {run.id} is number {rank} by {metric} {abs(scores[run.id]):.4g}{label}"
            found.append(_clone(policy, key, run, changes, policy.warm, reason))
    for _ in range(policy.crossed if len(best) > 1 else 0):
        first, second = draw.sample(best, 2)
        crossed = cross(first, second, draw)
        if crossed:
            taken = ", ".join(name.rpartition(".")[2] for name in crossed)
            reason = f"run {first.id} with {taken} of run {second.id}"
            warm = policy.warm and all(_keeps(name) for name in crossed)
            changes = {**crossed, **policy.changes}
            found.append(_clone(policy, key, first, changes, warm, reason))
    if policy.replace:
        worst = [r for r in reversed(order) if r.status in ACTIVE and r not in best]
        worst = [r for r in worst if r.id not in seen.memory.kept][: len(found)]
        found += [stop(policy.name, key, r.id, "it makes room for a clone") for r in worst]
    return [*found, note(policy.name, key, [r.id for r in order], f"compared at {at:.3g}")]


def _variants(
    policy: CloneBest, seen: Seen, run: Run, draw: Random
) -> list[tuple[dict[str, Any], str]]:  # Any: hyperparameter values
    """What each clone of a run changes, and in words."""
    rate = learning_rate(run, seen.rows.get(run.id, ()))
    given = policy.changes.get(RATE, policy.changes.get("learning_rate"))
    rate = float(given) if given is not None else rate
    if policy.spread == 0 or rate is None:
        return [(dict(policy.changes), "")]
    ways = [1 - policy.spread, 1 + policy.spread]
    rest = {k: v for k, v in policy.changes.items() if k not in (RATE, "learning_rate")}
    return [
        ({RATE: float(f"{rate * way:.3g}"), **rest}, f"; learning rate × {way:g}")
        for way in (ways if policy.both else [draw.choice(ways)])
    ]


def cross(first: Run, second: Run, draw: Random) -> dict[str, Any]:
    """What a child of two runs takes from the second; at least one thing, and not all.

    A PEFT config and a base model with what belongs to it are each taken whole.

    Returns:
        Changes of the first run's config by dotted name; empty if the two differ in less than two
        things. Any: hyperparameter values.
    """
    blocks: dict[str, dict[str, Any]] = {}
    for name in {**first.config, **second.config}:
        head = name.partition(".")[0]
        differs = first.config.get(name) != second.config.get(name)
        if differs and name in second.config and head not in _OWN:
            block = head if head == "peft_config" else ("base" if head in _START else name)
            blocks.setdefault(block, {})[name] = second.config[name]
    if len(blocks) < 2:
        return {}
    names = sorted(blocks)
    taken = [name for name in names if draw.random() < 0.5]
    if not taken or len(taken) == len(names):
        taken = [draw.choice(names)]
    return {name: value for block in taken for name, value in blocks[block].items()}


def _keeps(name: str) -> bool:
    """Whether a warm clone may be given another value of this."""
    head, _, tail = name.partition(".")
    return head == "training_args" and tail not in COLD_ARGUMENTS


def _clone(
    policy: CloneBest,
    key: str,
    run: Run,
    changes: Mapping[str, Any],  # Any: hyperparameter values
    warm: bool,
    reason: str,
) -> Decision:
    args = {"changes": dict(changes), "warm": warm, "again": False, "name": None}
    return ask(policy.name, key, Op("clone", run.id, args), reason)
