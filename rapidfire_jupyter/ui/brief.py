"""Experiments in brief: what the sidebar, the status bar and the guard of JupyterLab are told.

All messages between the kernel and the labextension are typed here, and mirrored in
`labextension/src/types.ts`; `tests/golden/comm.json` has one of each, which both sides' tests read.
Orders are acknowledged as in the panel, see `wire.Ack`. Pure: an experiment's events and state give
a `Brief`. `comm` is the kernel's end that sends them.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict

from rapidfire_jupyter.events import Event
from rapidfire_jupyter.state import ACTIVE, Run, State
from rapidfire_jupyter.ui.eta import etas
from rapidfire_jupyter.ui.view import whole_progress

Number = float | None
Json = Any  # Any: what JSON holds


class BriefRun(TypedDict):
    """One run. Shares from 0 to 1, times in seconds."""

    id: int
    name: str
    status: str
    progress: float
    step: int
    total_steps: int | None
    checkpoint_step: int | None
    eta_s: Number  # until this run is done, the others' turns in between
    loss: float | str | None  # the last one; a non-finite one as its name
    weight: float
    error: str


class Brief(TypedDict):
    """One experiment of this kernel; `runs` are the changed ones in an update, all when `full`."""

    key: str  # its folder: unique in a kernel
    name: str
    state: str  # empty, running, paused, halted, idle, ended
    live: bool  # training would be cut off if the kernel ended now
    reason: str  # why it is halted or read-only; "" otherwise
    progress: float
    eta_s: Number
    checkpoint_time: Number  # Unix time of the newest checkpoint of an active run
    alerts: int
    alert: str  # text of the newest one
    runs: list[BriefRun]


class Experiments(TypedDict):
    """What changed since the last message, or everything. `seq` is one more than the last one's."""

    type: Literal["experiments"]
    seq: int
    time: float  # Unix time of the kernel's clock
    full: bool
    experiments: list[Brief]
    gone: list[str]  # keys


class Model(TypedDict):
    """The answer to `OpenPanel`: the id of the widget model to show."""

    type: Literal["model"]
    id: str
    model: str
    error: str  # one line; "" if there is a model


class Hello(TypedDict):
    """A page listens, or asks for everything again. `every_s`: least seconds between messages."""

    type: Literal["hello"]
    every_s: float


class Ping(TypedDict):
    """Every 20 s; a page that is silent for 150 s is closed. Answered with a `Pong`."""

    type: Literal["ping"]
    seq: int  # the last one seen


class Pong(TypedDict):
    """The answer to a `Ping`, with the number of the last message sent."""

    type: Literal["pong"]
    seq: int


class Order(TypedDict):
    """An op on a run, or on the whole experiment (`run` is None). One that comes twice acts once.

    Answered with a `wire.Ack` at once ("pending", or "refused" at the door), and when it has acted.
    """

    type: Literal["order"]
    id: str
    experiment: str  # key
    kind: str
    run: int | None
    args: dict[str, Json]


class OpenPanel(TypedDict):
    """The page wants to show an experiment's panel outside a cell."""

    type: Literal["open_panel"]
    id: str
    experiment: str  # key


@dataclass(frozen=True)
class Seen:
    """What is remembered of the events read so far, besides the state.

    Attributes:
        count: Events read.
        losses: Last logged loss by run.
        steps: Step of the last logged row by run.
        pace: Training seconds and steps by run.
        checkpoints: Unix time of the newest checkpoint by run.
    """

    count: int = 0
    losses: Mapping[int, float | None] = field(default_factory=dict)
    steps: Mapping[int, int] = field(default_factory=dict)
    pace: Mapping[int, tuple[float, int]] = field(default_factory=dict)
    checkpoints: Mapping[int, float] = field(default_factory=dict)
    alerts: int = 0
    alert: str = ""


def see(seen: Seen, events: Iterable[Event]) -> Seen:
    """Read further events; those read before must not come again."""
    count, alerts, alert = seen.count, seen.alerts, seen.alert
    losses, steps = dict(seen.losses), dict(seen.steps)
    pace, checkpoints = dict(seen.pace), dict(seen.checkpoints)
    for event in events:
        count += 1
        run, data = event.run, event.data
        if event.kind == "alert":
            alerts, alert = alerts + 1, str(data.get("text", ""))
        elif run is None:
            continue
        elif event.kind == "logged":
            losses[run] = data["row"].get("loss", losses.get(run))
            steps[run] = data["row"]["step"]
        elif event.kind == "run_recovered":
            steps[run] = data["step"]
        elif event.kind == "slice_ended":
            seconds, trained = pace.get(run, (0.0, 0))
            pace[run] = (seconds + data["seconds"], trained + data["steps"])
        elif event.kind == "checkpoint":
            checkpoints[run] = event.time
    return replace(
        seen,
        count=count,
        losses=losses,
        steps=steps,
        pace=pace,
        checkpoints=checkpoints,
        alerts=alerts,
        alert=alert,
    )


def brief(key: str, name: str, status: str, reason: str, state: State, seen: Seen) -> Brief:
    """An experiment in brief; deleted runs are left out.

    Args:
        status: As `Experiment.status` says it.
        reason: Why nothing can be asked of it; "" if it can.
    """
    seconds_per_step = {i: seconds / steps for i, (seconds, steps) in seen.pace.items() if steps}
    left = etas(list(state.runs.values()), seconds_per_step)
    kept = [run for run in state.runs.values() if run.status != "deleted"]
    active = [run for run in kept if run.status in ACTIVE]
    times = [seen.checkpoints[run.id] for run in active if run.id in seen.checkpoints]
    return Brief(
        key=key,
        name=name,
        state=status,
        live=status in ("running", "paused") and bool(active),
        reason=reason,
        progress=round(whole_progress(kept, lambda run: _step(state.runs[run], seen)), 4),
        eta_s=_rounded(left.whole) if active else None,
        checkpoint_time=max(times, default=None),
        alerts=seen.alerts,
        alert=seen.alert,
        runs=[_run(run, seen, left.runs.get(run.id)) for run in kept],
    )


def changed(old: Brief | None, new: Brief) -> Brief | None:
    """What of an experiment differs from what was sent: itself, with the changed runs only.

    None if nothing does. A run that has gone is told by sending all runs that are left: the caller
    then sends everything (`full`).
    """
    if old is None:
        return new
    known = {run["id"]: run for run in old["runs"]}
    runs = [run for run in new["runs"] if known.get(run["id"]) != run]
    same = {**old, "runs": []} == {**new, "runs": []}
    return None if same and not runs else Brief(**{**new, "runs": runs})


def lost(old: Brief | None, new: Brief) -> bool:
    """Whether runs that were sent are no longer there."""
    return old is not None and not {r["id"] for r in old["runs"]} <= {r["id"] for r in new["runs"]}


def _run(run: Run, seen: Seen, eta_s: Number) -> BriefRun:
    done = run.status == "completed"
    step = _step(run, seen)
    progress = 1.0 if done else step / run.total_steps if run.total_steps else 0.0
    return BriefRun(
        id=run.id,
        name=run.name,
        status=run.status,
        progress=round(min(1.0, progress), 4),
        step=step,
        total_steps=run.total_steps,
        checkpoint_step=run.checkpoint_step,
        eta_s=_rounded(eta_s),
        loss=_named(seen.losses.get(run.id)),
        weight=run.weight,
        error=run.error,
    )


def _step(run: Run, seen: Seen) -> int:
    """Steps done: at its last boundary, or further if it has logged a later row."""
    return max(run.step, seen.steps.get(run.id, 0)) if run.status == "running" else run.step


def _rounded(seconds: Number) -> Number:
    """Two figures: what is shown does not change with every step, so neither does the message."""
    if not seconds:
        return seconds
    digits = 1 - math.floor(math.log10(abs(seconds)))
    return round(seconds, digits)


def _named(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
