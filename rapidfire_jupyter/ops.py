"""Ops: what a person, a magic, a panel or a policy may ask of an experiment, and when it may.

An `Op` is plain data. `verdict` is the pure rule that says whether an op can act on a state; the
engine asks it at the boundary where the op would act, so an op is judged by what is then true.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from rapidfire_jupyter import isolation, mixture
from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.mixture import WEIGHTS
from rapidfire_jupyter.state import ACTIVE, State

OpKind = Literal[
    "stop",
    "resume",
    "boost",
    "mix",
    "clone",
    "delete",
    "undelete",
    "pause_all",
    "resume_all",
    "policy",
    "undo",
]
Outcome = Literal["applied", "already", "refused"]
KINDS: tuple[OpKind, ...] = tuple(kind for kind in get_args(OpKind) if kind != "undo")
WHOLE_EXPERIMENT: frozenset[str] = frozenset({"pause_all", "resume_all", "policy"})
UNDO_SECONDS = 30.0


@dataclass(frozen=True)
class Op:
    """One request. `run` is None for ops on the whole experiment; `by` says who asked.

    "policy" has the name of one in its args, the mode it is switched to, and its settings; None
    leaves them as they are. "undo" stands for the opposite of the last op that acted before it; the
    engine finds it.
    """

    kind: OpKind
    run: int | None = None
    args: Mapping[str, Any] = field(default_factory=dict)  # Any: hyperparameter values of clones
    by: str = "cell"


@dataclass(frozen=True)
class Verdict:
    """What an op would do: act, or nothing, because it is already so or for a reason."""

    outcome: Outcome
    reason: str = ""


def verdict(state: State, op: Op, now: float) -> Verdict:
    """Judge an op against a state.

    Args:
        now: Unix time in seconds; an undelete is allowed until `UNDO_SECONDS` after its delete.
    """
    if op.kind == "policy":
        return _policy(state, op)
    if op.kind in WHOLE_EXPERIMENT:
        wanted = op.kind == "pause_all"
        return Verdict("already" if state.paused == wanted else "applied")
    run = state.runs.get(op.run if op.run is not None else -1)
    if run is None:
        known = ", ".join(str(i) for i in state.runs) or "none yet"
        return Verdict("refused", f"there is no run {op.run}; runs: {known}")
    if run.status == "deleted" and op.kind not in ("delete", "undelete"):
        return Verdict(
            "refused", f"run {run.id} is deleted; undelete it within 30 s, or clone another"
        )
    return _RULES[op.kind](state, op, now)


def _policy(state: State, op: Op) -> Verdict:
    known, settings = state.policy(op.args["name"]), op.args["settings"]
    same = settings is None or settings == known["settings"]
    return Verdict("already" if same and op.args["mode"] == known["mode"] else "applied")


def _stop(state: State, op: Op, now: float) -> Verdict:
    run = state.runs[op.run or 0]
    if run.status in ACTIVE:
        return Verdict("applied")
    if run.status == "stopped":
        return Verdict("already")
    return Verdict("refused", f"run {run.id} is {run.status}; only an active run can be stopped")


def _resume(state: State, op: Op, now: float) -> Verdict:
    run = state.runs[op.run or 0]
    if op.args:
        so_long = all(run.config.get(f"training_args.{k}") == v for k, v in op.args.items())
        if so_long and run.status in (*ACTIVE, "completed"):
            return Verdict("already", f"run {run.id} trains that long already")
        if run.status in ACTIVE:
            return Verdict(
                "refused", f"run {run.id} is {run.status}; stop it before it is extended"
            )
        return Verdict("applied")
    if run.status in ("stopped", "failed"):
        return Verdict("applied")
    if run.status == "completed":
        return Verdict(
            "refused",
            f"run {run.id} has finished, at step {run.step}; give num_train_epochs= or "
            "max_steps= to train longer, or clone it",
        )
    if run.status == "paused":
        return Verdict("refused", f"run {run.id} is paused with the experiment; use resume_all")
    return Verdict("already")


def _boost(state: State, op: Op, now: float) -> Verdict:
    run = state.runs[op.run or 0]
    if run.weight == op.args["weight"]:
        return Verdict("already")
    if run.status not in (*ACTIVE, "stopped"):
        return Verdict("refused", f"run {run.id} is {run.status}; it gets no more slices to weigh")
    return Verdict("applied")


def _mix(state: State, op: Op, now: float) -> Verdict:
    run = state.runs[op.run or 0]
    if WEIGHTS not in run.config:
        return Verdict(
            "refused",
            f"run {run.id} trains on one data set; tasks are weighed where run_fit has "
            "train_dataset=mix({...})",
        )
    if mixture.now(run.config[WEIGHTS]) == op.args["weights"]:
        return Verdict("already")
    if run.status not in (*ACTIVE, "stopped"):
        return Verdict(
            "refused",
            f"run {run.id} is {run.status}; only a run that goes on can change its weights, or "
            'clone it with {"mixture.weights": ...}',
        )
    return Verdict("applied")


def _clone(state: State, op: Op, now: float) -> Verdict:
    run = state.runs[op.run or 0]
    if op.args["warm"] and run.step == 0 and run.checkpoint_step is None:
        return Verdict(
            "refused", f"run {run.id} has no trained step yet to start warm from; use warm=False"
        )
    return Verdict("applied")


def _delete(state: State, op: Op, now: float) -> Verdict:
    return Verdict("already" if state.runs[op.run or 0].status == "deleted" else "applied")


def _undelete(state: State, op: Op, now: float) -> Verdict:
    run = state.runs[op.run or 0]
    if run.status != "deleted":
        return Verdict("already")
    if now - run.deleted_at > UNDO_SECONDS:
        return Verdict("refused", f"run {run.id} was deleted more than {UNDO_SECONDS:.0f} s ago")
    return Verdict("applied")


_RULES = {
    "stop": _stop,
    "resume": _resume,
    "boost": _boost,
    "mix": _mix,
    "clone": _clone,
    "delete": _delete,
    "undelete": _undelete,
}


class OpHandle:
    """The asker's end of an op: it never blocks unless `wait` is called.

    `status` is "pending" until the op acted at its boundary, then "applied", "already" (it was so
    before) or "refused" (see `reason`). `step` is the run's step at which it acted. `run_id` is the
    new run of a clone, else the run it acted on.
    """

    def __init__(self, op: Op) -> None:
        self.op = op
        self.status: Literal["pending"] | Outcome = "pending"
        self.reason = ""
        self.step: int | None = None
        self.run_id: int | None = op.run
        self._done = threading.Event()
        self._callbacks: list[Callable[[OpHandle], None]] = []
        self._lock = threading.Lock()

    def settle(self, outcome: Outcome, reason: str, step: int | None, run_id: int | None) -> None:
        """Called once, by the engine."""
        # The status is what others look at first, so it comes last.
        self.reason, self.step, self.run_id, self.status = reason, step, run_id, outcome
        with self._lock:
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def then(self, callback: "Callable[[OpHandle], None]") -> None:
        """Call `callback(handle)` once the op has acted, or now if it has.

        It is called in the engine's thread while training waits: it must be quick and never raise.
        """
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback(self)

    def wait(self, timeout: float | None = None) -> "OpHandle":
        """Wait until the op has acted.

        Args:
            timeout: Seconds; None waits for as long as it takes.

        Raises:
            OpError: The op was refused (its reason is the message).
            TimeoutError: It is still pending.
        """
        with isolation.waiting():
            done = self._done.wait(timeout)
        if not done:
            raise TimeoutError(f"op {self.op.kind!r} is still pending after {timeout} s")
        if self.status == "refused":
            raise OpError(self.reason)
        return self

    def __repr__(self) -> str:
        target = "" if self.op.run is None else f" run {self.op.run}"
        tail = f": {self.reason}" if self.reason else ""
        at = "" if self.step is None else f" at step {self.step}"
        new = f" -> run {self.run_id}" if self.run_id != self.op.run else ""
        return f"<{self.op.kind}{target} {self.status}{at}{new}{tail}>"
