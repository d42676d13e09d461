"""What a view shows, from what is known: the head, a row per run, whole snapshots. Pure functions.

`Facts` holds what is not in the event log; `Fold` holds what is.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rapidfire_jupyter.state import Run, State
from rapidfire_jupyter.ui.curves import pack, thin_all
from rapidfire_jupyter.ui.eta import Etas, etas
from rapidfire_jupyter.ui.fold import Fold
from rapidfire_jupyter.ui.metrics import best_runs, by_use, comparable, ranks
from rapidfire_jupyter.ui.metrics import lower_is_better as lower_is_better
from rapidfire_jupyter.ui.wire import Block, Head, Number, Row, Snapshot

MOST_ENDS = 64  # of chunks, in a row


@dataclass(frozen=True)
class Facts:
    """What is not in the event log: how the experiment stands in this kernel, and the machine.

    Attributes:
        status: As `Experiment.status`.
        reason: Why it is halted or read-only; "" otherwise.
        memory: used_bytes and total_bytes.
        can: What this kernel offers, see `Head`.
    """

    name: str
    status: str = "ended"
    read_only: bool = False
    reason: str = ""
    device: str = ""
    memory: Mapping[str, Number] = field(default_factory=dict)
    can: tuple[str, ...] = ()


def differing(state: State) -> tuple[dict[str, Any], list[str]]:
    """Hyperparameters that are the same for all runs, and the names of those that differ.

    Runs that are deleted do not count. Any: JSON values.
    """
    runs = [r for r in state.runs.values() if r.status != "deleted"] or list(state.runs.values())
    names = list(dict.fromkeys(name for run in runs for name in run.config if name != "name"))
    constants, varying = {}, []
    for name in names:
        first = runs[0].config.get(name)
        if all(run.config.get(name) == first for run in runs):
            constants[name] = first
        else:
            varying.append(name)
    return constants, varying


def current_etas(fold: Fold) -> Etas:
    """Seconds that are left, as far as is measured."""
    runs = [_at_step(run, fold.step(run.id)) for run in fold.state.runs.values()]
    return etas(runs, fold.seconds_per_step())


def _at_step(run: Run, step: int) -> Run:
    return run if step == run.step else replace(run, step=step)


def head(fold: Fold, facts: Facts, now: float) -> Head:
    """The experiment as a whole.

    Args:
        fold: What the log says.
        facts: What it does not say.
        now: Unix time in seconds.
    """
    state = fold.state
    runs = [r for r in state.runs.values() if r.status != "deleted"]
    constants, varying = differing(state)
    last = {r.id: fold.last[r.id] for r in runs if r.id in fold.last}
    elapsed = fold.trained_s
    if fold.open_slice is not None and facts.status == "running":
        elapsed += max(0.0, now - fold.open_slice[1])
    counts: dict[str, int] = {}
    for run in state.runs.values():
        counts[run.status] = counts.get(run.status, 0) + 1
    going = facts.status in ("running", "paused")
    return {
        "name": facts.name,
        "state": facts.status,
        "read_only": facts.read_only,
        "reason": facts.reason,
        "progress": round(whole_progress(runs, fold.step), 4),
        "elapsed_s": round(elapsed, 1),
        "eta_s": rounded(current_etas(fold).whole) if going else None,
        "counts": counts,
        "device": facts.device,
        "memory": dict(facts.memory),
        "alerts": fold.alerts,
        "metrics": by_use(fold.metrics),
        "lower_is_better": {m: lower_is_better(m) for m in fold.metrics if ranks(m)},
        "constants": constants,
        "varying": varying,
        "best": best_runs(last, fold.metrics, comparable(runs)),
        "rows_per_epoch": fold.rows_per_epoch(),
        "first_time": fold.first_time,
        "can": list(facts.can),
    }


def whole_progress(runs: Sequence[Run], step: Callable[[int], int]) -> float:
    """Steps done, as a share of the steps that the runs are meant to take.

    A run that was stopped early counts as far as it came: it may be resumed.

    Args:
        runs: All that are not deleted.
        step: Steps that a run has done.
    """
    known = [r.total_steps for r in runs if r.total_steps]
    typical = sum(known) / len(known) if known else 1.0
    done = whole = 0.0
    for run in runs:
        total = run.total_steps or typical
        whole += total
        done += total if run.status == "completed" else min(total, step(run.id))
    return done / whole if whole else 0.0


def rounded(value: float | None) -> float | None:
    """Five significant digits; None for what is not known."""
    return None if value is None else float(f"{value:.5g}")


def shown(value: float) -> float | str:
    """A logged value as JSON holds it: six digits, or the name of what is not finite."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return float(f"{value:.6g}")


def row(fold: Fold, run_id: int, varying: list[str], left: Etas) -> Row:
    """One run, as the table shows it.

    Args:
        fold: What the log says.
        run_id: Of a run there is.
        varying: Names of the hyperparameters to show.
        left: From `current_etas`.
    """
    run, step = fold.state.runs[run_id], fold.step(run_id)
    total = run.total_steps
    progress = 1.0 if run.status == "completed" else min(1.0, step / total) if total else 0.0
    deleted_at = run.deleted_at - fold.first_time if run.status == "deleted" else 0.0
    return {
        "id": run.id,
        "name": run.name,
        "status": run.status,
        "progress": round(progress, 4),
        "step": step,
        "total_steps": total,
        "chunk": _at_step(run, step).chunk,
        "chunk_ends": _some(run.chunk_ends),
        "eta_s": rounded(left.runs.get(run.id)),
        "params": {name: run.config.get(name) for name in varying},
        "last": {name: shown(value) for name, value in fold.last.get(run.id, {}).items()},
        "weight": run.weight,
        "parent": run.parent,
        "warm": run.warm,
        "clone_step": run.clone_step,
        "changes": dict(run.changes),
        "inexact": list(run.inexact),
        "error": run.error,
        "why": fold.why.get(run.id, "") if run.status == "stopped" else "",
        "checkpoint_step": run.checkpoint_step,
        "deleted_at": round(deleted_at, 3),
        "parked": bool(getattr(run, "parked", False)),
    }


def _some(ends: Sequence[int]) -> list[int]:
    """Ends of chunks; of every so many chunks, if they are more than can be told apart."""
    every = -(-len(ends) // MOST_ENDS)
    return list(ends[every - 1 :: every]) if every > 1 else list(ends)


def rows(fold: Fold) -> list[Row]:
    """Every run, as the table shows it."""
    _, varying = differing(fold.state)
    left = current_etas(fold)
    return [row(fold, run, varying, left) for run in fold.state.runs]


def snapshot(
    fold: Fold, facts: Facts, seq: int, now: float, share: float = 1.0
) -> tuple[Snapshot, bytes]:
    """Everything, with curves thinned, and the numbers of the curves.

    Args:
        fold: What the log says.
        facts: What it does not say.
        seq: Of the newest message.
        now: Unix time in seconds.
        share: How large it may be; 1 is the usual size.
    """
    blocks: list[Block] = []
    numbers: list[bytes] = []
    for run, points in thin_all(fold.curves, share).items():
        more, packed = pack(run, points)
        blocks += more
        numbers.append(packed)
    message: Snapshot = {
        "type": "snapshot",
        "seq": seq,
        "head": head(fold, facts, now),
        "rows": rows(fold),
        "blocks": blocks,
        "entries": list(fold.entries),
        "slices": list(fold.slices),
    }
    return message, b"".join(numbers)
