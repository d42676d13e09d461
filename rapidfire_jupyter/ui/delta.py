"""What changed since the views were last told: small, however long the history is.

A delta has every new point, and every row of the table that changed in substance. Rows that only
moved on (step, last values, time left) come a few at a time, those not told for longest first.
"""

from dataclasses import dataclass, field
from typing import Any

from rapidfire_jupyter.ui.curves import LEAST_ROWS, Point, pack, thin
from rapidfire_jupyter.ui.fold import Fold
from rapidfire_jupyter.ui.view import Facts, head, rows
from rapidfire_jupyter.ui.wire import Block, Delta, Head, Row

MOVED_ROWS = 8  # in one delta
RESET_ROWS = 10 * LEAST_ROWS  # of a run whose curve is told anew
_MOVING = frozenset({"progress", "step", "chunk", "checkpoint_step", "eta_s", "last"})
_MOVING_HEAD = frozenset({"progress", "elapsed_s", "eta_s", "memory", "best"})


@dataclass
class Known:
    """What the views were told.

    Attributes:
        points: Points of each run.
        dropped: Times that points of a run were dropped.
        rows: The row of each run, and `told` the sequence number of its message.
        entries: Sequence number after that of the newest entry.
        slices: Number of slices.
        head: The head.
    """

    points: dict[int, int] = field(default_factory=dict)
    dropped: dict[int, int] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)
    told: dict[int, int] = field(default_factory=dict)
    entries: int = 0
    slices: int = 0
    head: Head | None = None


def all_known(fold: Fold, table: list[Row], top: Head, seq: int) -> Known:
    """What views know that were told everything, in the message `seq`."""
    return Known(
        points={run: len(points) for run, points in fold.curves.items()},
        dropped=dict(fold.dropped),
        rows={row["id"]: row for row in table},
        told={row["id"]: seq for row in table},
        entries=fold.next_seq,
        slices=fold.slice_count,
        head=top,
    )


def changes(
    fold: Fold, facts: Facts, known: Known, seq: int, now: float, *, beat: bool
) -> tuple[Delta, bytes] | None:
    """The delta from what is known to what is, marked as known; None if nothing changed.

    Args:
        fold: What the log says.
        facts: What it does not say.
        known: What the views were told; it is brought up to date.
        seq: Sequence number of the message.
        now: Unix time in seconds.
        beat: Tell the head also if it only moved on.
    """
    blocks: list[Block] = []
    numbers: list[bytes] = []
    reset = [run for run, count in fold.dropped.items() if known.dropped.get(run, 0) != count]
    for run, points in fold.curves.items():
        new = _new_points(points, 0 if run in reset else known.points.get(run, 0))
        more, packed = pack(run, new)
        blocks += more
        numbers.append(packed)
        known.points[run] = len(points)
    known.dropped = dict(fold.dropped)
    top: Head | None = head(fold, facts, now)
    if known.head is not None and top is not None and not beat:
        top = top if _differs(known.head, top, _MOVING_HEAD) else None
    table = _changed_rows(rows(fold), known)
    entries = [entry for entry in fold.entries if entry["seq"] >= known.entries]
    missed = min(fold.slice_count - known.slices, len(fold.slices))
    slices = list(fold.slices)[len(fold.slices) - missed :]
    known.entries, known.slices = fold.next_seq, fold.slice_count
    if not (blocks or reset or top or table or entries or slices):
        return None
    known.head = top or known.head
    for row in table:
        known.rows[row["id"]] = row
        known.told[row["id"]] = seq
    message: Delta = {
        "type": "delta",
        "seq": seq,
        "head": top,
        "rows": table,
        "gone": [],
        "reset": reset,
        "blocks": blocks,
        "entries": entries,
        "slices": slices,
    }
    return message, b"".join(numbers)


def _new_points(points: list[Point], known: int) -> list[Point]:
    new = points[known:]
    return thin(new, RESET_ROWS) if len(new) > RESET_ROWS else new


def _changed_rows(table: list[Row], known: Known) -> list[Row]:
    """Rows that changed in substance, and some of those that moved on."""
    changed, moved = [], []
    for row in table:
        before = known.rows.get(row["id"])
        if before is None or _differs(before, row, _MOVING):
            changed.append(row)
        elif _moved(before, row):
            moved.append(row)
    moved.sort(key=lambda row: known.told.get(row["id"], -1))
    return changed + moved[:MOVED_ROWS]


def _moved(before: Row, row: Row) -> bool:
    if _differs(before, row, frozenset({"eta_s"})):
        return True
    old, new = before["eta_s"], row["eta_s"]
    if old is None or new is None:
        return old != new
    return abs(new - old) > max(5.0, 0.1 * old)


def _differs(before: Any, now: Any, but: frozenset[str]) -> bool:  # Any: two rows, or two heads
    return any(before[key] != value for key, value in now.items() if key not in but)
