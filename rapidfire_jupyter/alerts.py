"""Alerts: what a monitor found, in words, with remedies that are one click each. Plain data."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rapidfire_jupyter.comparison import Row, learning_rate
from rapidfire_jupyter.ops import Op, OpKind
from rapidfire_jupyter.state import ACTIVE, Run

Level = Literal["info", "warning", "error"]
Remedy = tuple[str, OpKind, Mapping[str, Any]]  # label, op, its args. Any: hyperparameter values

_RATE = "training_args.learning_rate"
_CLIP = "training_args.max_grad_norm"
_DECAY = "training_args.weight_decay"
_DROPOUT = "peft_config.lora_dropout"
_CLIP_DEFAULT = 1.0  # of transformers' TrainingArguments


@dataclass(frozen=True)
class Alert:
    """One thing that went wrong in one run, or in the whole experiment (`run` is None).

    Attributes:
        kind: The monitor's kind.
        step: Where it was first seen; None for what has no step.
        text: What, with numbers, and what it may come from.
        remedies: Label, op and args each, to be asked for by `op_of`.
        episode: Step (or Unix time) at which it began: one alert for each kind, run and episode.
    """

    kind: str
    run: int | None
    step: int | None
    text: str
    level: Level
    remedies: tuple[Remedy, ...] = ()
    episode: int = 0

    @property
    def key(self) -> str:
        """The same for one episode, whenever one looks."""
        return f"{self.kind} {'all' if self.run is None else self.run} {self.episode}"


def op_of(alert: Alert, remedy: int = 0, by: str = "alert") -> Op:
    """The op of one of an alert's remedies."""
    _, kind, args = alert.remedies[remedy]
    return Op(kind, None if kind in ("pause_all", "resume_all") else alert.run, dict(args), by)


def to_dict(alert: Alert) -> dict[str, Any]:
    """An alert as the data of its event. Any: JSON values."""
    return {
        "kind": alert.kind,
        "key": alert.key,
        "step": alert.step,
        "text": alert.text,
        "level": alert.level,
        "remedies": [[label, kind, dict(args)] for label, kind, args in alert.remedies],
    }


def episodes(flags: Iterable[tuple[int, bool]], calm: int = 1) -> list[int]:
    """Positions at which an episode begins: a flag after `calm` positions without one."""
    found, last = [], -math.inf
    for position, flag in flags:
        if flag:
            if position - last > calm:
                found.append(position)
            last = position
    return found


# ---- remedies ----


def stopping(run: Run) -> tuple[Remedy, ...]:
    """Stop the run, if it still trains."""
    return ((f"stop run {run.id}", "stop", {}),) if run.status in ACTIVE else ()


def boosting(run: Run) -> tuple[Remedy, ...]:
    """Twice the training time, if it still trains."""
    if run.status not in ACTIVE:
        return ()
    weight = min(1000.0, run.weight * 2)
    return ((f"boost run {run.id} to weight {weight:g}", "boost", {"weight": weight}),)


def other_rate(run: Run, rows: Sequence[Row], factor: float, warm: bool) -> tuple[Remedy, ...]:
    """A clone with the learning rate times a factor; nothing if the rate is not known."""
    rate = learning_rate(run, rows)
    if rate is None:
        return ()
    return (_clone(_RATE, "learning rate", rate, float(f"{rate * factor:.3g}"), warm),)


def clipping(run: Run, warm: bool) -> tuple[Remedy, ...]:
    """A clone whose gradients are clipped harder: to 1.0, or to 0.5 if they were already."""
    now = run.config.get(_CLIP)
    old = _CLIP_DEFAULT if now is None else float(now)
    new = 1.0 if old == 0 or old > 1.0 else 0.5 if old > 0.5 else old / 2  # 0: no clipping
    return (_clone(_CLIP, "max_grad_norm", old, new, warm),)


def regularised(run: Run) -> tuple[Remedy, ...]:
    """Warm clones with more dropout and with more weight decay."""
    found = []
    if any(name.startswith("peft_config") for name in run.config):
        old = float(run.config.get(_DROPOUT) or 0.0)
        new = 0.1 if old < 0.1 else 0.3 if old < 0.3 else 0.5
        if new > old:
            found.append(_clone(_DROPOUT, "lora_dropout", old, new, True))
    decay = float(run.config.get(_DECAY) or 0.0)
    found.append(_clone(_DECAY, "weight_decay", decay, 0.1 if decay < 0.1 else decay * 3, True))
    return tuple(found)


def _clone(key: str, name: str, old: float, new: float, warm: bool) -> Remedy:
    how = "warm" if warm else "cold"
    args = {"changes": {key: new}, "warm": warm, "again": False, "name": None}
    return f"clone {how} with {name} {old:g} → {new:g}", "clone", args
