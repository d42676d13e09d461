"""The state of an experiment: frozen data, changed in one way only, by applying an event.

Replaying `events.jsonl` through `apply` gives the state again, in any kernel. Logged rows are not
part of the state (they would be copied at each event); `history` reads them from the events.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rapidfire_jupyter.events import Event

Status = Literal["queued", "running", "paused", "stopped", "completed", "failed", "deleted"]
ACTIVE: tuple[Status, ...] = ("queued", "running", "paused")


@dataclass(frozen=True)
class Run:
    """One run as the log knows it.

    Attributes:
        config: Flat encoded config, as `config.encode` gives it (JSON values only).
        changes: What a clone changed, encoded; empty for runs of the grid.
        step: Optimizer steps done at the last boundary that was reported.
        chunk_ends: Step at which each chunk ends; empty until the run was prepared.
        served: Training had so far, in chunks divided by weight: the scheduler's virtual time.
        inexact: Reasons why this run may differ from plain TRL; empty means exact.
        adjusted: Names of the config values that were changed so that it fits into memory.
        memory: Bytes it takes, by kind, and whether they are measured; empty until it was prepared.
    """

    id: int
    name: str
    trainer_type: str
    config: Mapping[str, Any]  # Any: JSON values
    status: Status = "queued"
    parent: int | None = None
    warm: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)  # Any: JSON values
    clone_step: int | None = None
    weight: float = 1.0
    step: int = 0
    total_steps: int | None = None
    chunk_ends: tuple[int, ...] = ()
    served: float = 0.0
    checkpoint_step: int | None = None
    error: str = ""
    inexact: tuple[str, ...] = ()
    deleted_at: float = 0.0
    deleted_from: Status = "stopped"
    base: str = ""
    adjusted: tuple[str, ...] = ()
    memory: Mapping[str, Any] = field(default_factory=dict)  # Any: JSON values

    @property
    def chunk(self) -> int:
        """Chunks finished."""
        return sum(end <= self.step for end in self.chunk_ends) if self.step else 0


@dataclass(frozen=True)
class State:
    """An experiment: its runs by id, the settings of its fit, and whether it is paused or ended.

    Attributes:
        overseen: The policies that `run_fit` was given last, in words by name, and `dry_run`.
        switched: How people switched policies since then: mode and settings by name.
    """

    runs: Mapping[int, Run] = field(default_factory=dict)
    fit: Mapping[str, Any] | None = None  # Any: JSON values
    paused: bool = False
    ended: bool = False
    overseen: Mapping[str, Any] = field(default_factory=dict)  # Any: JSON values
    switched: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # Any: JSON values

    def policy(self, name: str) -> Mapping[str, Any]:  # Any: JSON values
        """Mode and settings of a policy, as it was given or switched."""
        given = name in self.overseen.get("policies", ())
        usual = "dry-run" if self.overseen.get("dry_run") else "on"
        mode = usual if given else "off"
        return self.switched.get(name, {"mode": mode, "settings": {}})


def apply(state: State, event: Event) -> State:
    """Give the state after an event. Unknown kinds (of a later version) change nothing."""
    data = event.data
    if event.kind == "fit_started":
        runs = {spec["id"]: Run(**spec) for spec in data["runs"]}
        return State(runs=runs, fit=data["fit"])  # after one in which nothing was trained
    if event.kind == "op":
        return _apply_op(state, event)
    if event.kind == "overseen":
        return replace(state, overseen=data, switched={})
    if event.kind == "ended":
        runs = {i: _requeued(run) for i, run in state.runs.items()}
        return replace(state, ended=True, runs=runs)
    if event.kind == "attached":
        return replace(state, ended=False, runs={i: _requeued(r) for i, r in state.runs.items()})
    if event.run is None or event.run not in state.runs:
        return state
    changes = _run_changes(state.runs[event.run], event)
    return _with_run(state, replace(state.runs[event.run], **changes)) if changes else state


def _run_changes(run: Run, event: Event) -> dict[str, Any]:  # Any: values of Run's fields
    data = event.data
    if event.kind == "run_prepared":
        return {
            "total_steps": data["total_steps"],
            "chunk_ends": tuple(data["chunk_ends"]),
            "base": data["base"],
            "step": data["step"],
            "memory": data.get("memory", {}),
        }
    if event.kind == "slice_started":
        return {"status": "running"}
    if event.kind == "advanced":
        served = run.served + data["chunks"] / run.weight
        return {"step": data["step"], "served": served}
    if event.kind == "checkpoint":
        return {"checkpoint_step": data["step"]}
    if event.kind == "run_recovered":
        lost = chunks_done(run.chunk_ends, run.step) - chunks_done(run.chunk_ends, data["step"])
        return {
            "step": data["step"],
            "checkpoint_step": data["step"] or None,
            "served": max(0.0, run.served - lost / run.weight),
        }
    if event.kind == "run_completed":
        return {"status": "completed", "step": data["step"]}
    if event.kind == "run_failed":
        return {"status": "failed", "error": data["error"]}
    if event.kind == "run_adjusted":
        names = (*run.adjusted, *(n for n in data["changes"] if n not in run.adjusted))
        status = "queued" if run.status == "running" else run.status
        return {"config": {**run.config, **data["changes"]}, "adjusted": names, "status": status}
    if event.kind == "run_inexact":
        return {} if data["reason"] in run.inexact else {"inexact": (*run.inexact, data["reason"])}
    return {}


def _apply_op(state: State, event: Event) -> State:
    data = event.data
    if data["outcome"] != "applied":
        return state
    kind = data["kind"]
    if kind == "pause_all":
        runs = {
            i: replace(r, status="paused") if r.status in ACTIVE else r
            for i, r in state.runs.items()
        }
        return replace(state, runs=runs, paused=True)
    if kind == "resume_all":
        runs = {
            i: replace(r, status="queued") if r.status == "paused" else r
            for i, r in state.runs.items()
        }
        return replace(state, runs=runs, paused=False)
    if kind == "policy":
        name, settings = data["args"]["name"], data["args"]["settings"]
        if settings is None:
            settings = state.policy(name)["settings"]
        switch = {"mode": data["args"]["mode"], "settings": settings}
        return replace(state, switched={**state.switched, name: switch})
    waiting: Status = "paused" if state.paused else "queued"
    if kind == "clone":
        child = Run(**{**data["created"], "served": _entry(state)})
        return _with_run(state, replace(child, status=waiting))
    if event.run is None or event.run not in state.runs:
        return state
    run = state.runs[event.run]
    if kind == "stop":
        return _with_run(state, replace(run, status="stopped"))
    if kind == "resume":
        extended = {"config": data["config"], "total_steps": None} if "config" in data else {}
        served = max(run.served, _entry(state))
        return _with_run(state, replace(run, status=waiting, error="", served=served, **extended))
    if kind == "boost":
        # What it is ahead of the least served run is time at its old weight.
        ahead = max(0.0, run.served - _entry(state)) * run.weight / data["weight"]
        served = run.served if run.served <= _entry(state) else _entry(state) + ahead
        return _with_run(state, replace(run, weight=data["weight"], served=served))
    if kind == "mix":
        status = "queued" if run.status == "running" else run.status
        config = {**run.config, "mixture.weights": data["weights"]}
        return _with_run(state, replace(run, config=config, status=status))
    if kind == "delete":
        known: Status = "queued" if run.status in ACTIVE else run.status
        deleted = replace(run, status="deleted", deleted_at=event.time, deleted_from=known)
        return _with_run(state, deleted)
    if kind == "undelete":
        back = waiting if run.deleted_from in ACTIVE else run.deleted_from
        served = max(run.served, _entry(state))
        undeleted = replace(run, status=back, deleted_from="stopped", served=served)
        return _with_run(state, undeleted)
    return state


def _entry(state: State) -> float:
    """Virtual time at which a newcomer joins: that of the least served active run."""
    return min((r.served for r in state.runs.values() if r.status in ACTIVE), default=0.0)


def _requeued(run: Run) -> Run:
    return replace(run, status="queued") if run.status == "running" else run


def _with_run(state: State, run: Run) -> State:
    return replace(state, runs={**state.runs, run.id: run})


def chunks_done(chunk_ends: Sequence[int], step: int) -> float:
    """Chunks trained at a step, with the share of the chunk it is in."""
    done = bisect_right(chunk_ends, step)
    if done >= len(chunk_ends):
        return float(len(chunk_ends))
    start = chunk_ends[done - 1] if done else 0
    return done + (step - start) / (chunk_ends[done] - start)


def history(events: Iterable[Event], run: int) -> list[dict[str, Any]]:
    """Rows logged by a run, in order, each with its `step`. Any: numbers.

    Rows past the step of a later recovery are dropped: they were trained again.
    """
    return [dict(event.data["row"]) for event in _logged(events, run)]


def observed_steps(events: Iterable[Event], run: int, source: str = "chunk") -> set[int]:
    """Steps at which a run has rows from a source: a "chunk" evaluation, or a "generation"."""
    return {e.data["row"]["step"] for e in _logged(events, run) if e.data["source"] == source}


def _logged(events: Iterable[Event], run: int) -> Iterator[Event]:
    kept: list[Event] = []
    for event in events:
        if event.run == run and event.kind == "logged":
            kept.append(event)
        elif event.kind == "fit_started":
            kept.clear()
        elif event.run == run and event.kind == "run_recovered":
            del kept[event.data["rows"] :]
    return iter(kept)
