"""`clean_data`: does what the report suggests, and tells of every row it drops."""

from collections import Counter
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rapidfire_jupyter.data import conversations as chats
from rapidfire_jupyter.data import duplicates as equal
from rapidfire_jupyter.data import layouts
from rapidfire_jupyter.data.columns import dataset_of
from rapidfire_jupyter.data.kinds import KINDS
from rapidfire_jupyter.data.layouts import Layout
from rapidfire_jupyter.data.report import row_count
from rapidfire_jupyter.data.sets import as_dataset
from rapidfire_jupyter.data.values import is_blank, is_chat, is_text, truth_values
from rapidfire_jupyter.errors import DataError

_LEARNT = ("completion", "output", "text", "chosen", "rejected")
_TURNS = {
    "empty": "without a turn",
    "role": "with a turn of an unknown role",
    "reply": "without an assistant's turn",
    "blank": "whose assistant says nothing",
}
Mask = Any  # a numpy array of booleans, one per row


@dataclass(frozen=True)
class Dropped:
    """A row that was dropped.

    Attributes:
        row: Its number in the data that were given, counted from 1.
        reason: Why.
        of: The row it repeats; None for other reasons.
    """

    row: int
    reason: str
    of: int | None = None


@dataclass(frozen=True, repr=False)
class CleanReport:
    """What `clean_data` did.

    Attributes:
        rows: Rows that were given.
        kept: Rows that are left.
        stripped: Rows of which blanks at the ends were taken off.
        dropped: Each row that was dropped, in their order.
    """

    rows: int
    kept: int
    stripped: int
    dropped: tuple[Dropped, ...]

    @property
    def reasons(self) -> dict[str, int]:
        """Dropped rows by reason, the most frequent first."""
        return dict(Counter(drop.reason for drop in self.dropped).most_common())

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, for JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        lines = [f"{row_count(self.kept)} of {self.rows} kept"]
        lines += [f"  {count} dropped: {reason}" for reason, count in self.reasons.items()]
        if self.stripped:
            lines.append(f"  {row_count(self.stripped)} stripped of blanks")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        lines = "".join(
            f"<tr><td>{count}</td><td style='text-align:left'>{escape(reason)}</td></tr>"
            for reason, count in self.reasons.items()
        )
        stripped = f"<div>{row_count(self.stripped)} stripped of blanks</div>" * bool(self.stripped)
        table = f"<table><thead><tr><th>dropped</th><th>why</th></tr></thead>{lines}</table>"
        head = f"<div>{row_count(self.kept)} of {self.rows} kept</div>"
        return f"<div>{head}{stripped}{table if lines else ''}</div>"


@dataclass
class _Work:
    """Rows that are still there, and why the others are not."""

    table: pa.Table
    rows: "np.ndarray[Any, Any]"
    dropped: list[Dropped]

    def drop(self, mask: Mask, reason: str, of: Any = None) -> None:
        """Drop rows of a mask; `of` has, for each row that is there, the row it repeats."""
        for at in np.flatnonzero(mask):
            first = None if of is None else int(self.rows[of[at]]) + 1
            self.dropped.append(Dropped(int(self.rows[at]) + 1, reason, first))
        if mask.any():
            self.table = self.table.filter(pa.array(~mask))
            self.rows = self.rows[~mask]


def clean_data(
    data: Any,
    *,
    trainer_type: str | None = None,
    kind: str | None = None,
    strip: bool = False,
    empty: bool = True,
    duplicates: bool = True,
    near_duplicates: float | bool = False,
    conversations: bool = True,
    not_in: Any = None,
) -> tuple[Any, CleanReport]:
    """Drop rows that cannot or should not be trained on.

    Rows that lack a part, rows labelled false (for SFT) and pairs of equal answers always go. What
    stays is unchanged and in its order, unless `strip` is asked for.

    Args:
        data: A datasets.Dataset, a list of dicts or a DataFrame. Any: they share no type.
        trainer_type: "SFT", "DPO", ...; None takes the first that has such columns.
        kind: The layout to keep, where rows are of several.
        strip: Take blanks off both ends of texts. A blank before an answer parts it from its
            prompt, so this is off by default.
        empty: Drop rows with an empty text to learn.
        duplicates: Drop rows equal to an earlier one.
        near_duplicates: Drop rows nearly equal to an earlier one: True for a similarity of 0.85,
            or a least similarity.
        conversations: Drop conversations without turns or replies, or with unknown roles.
        not_in: Data to evaluate on: rows that are in it are dropped.

    Returns:
        The cleaned datasets.Dataset, and the report.

    Raises:
        DataError: The data have no layout, or several and `kind` is not given; or no row is left.
    """
    data = as_dataset(data, "the data")
    if not hasattr(data, "__len__"):
        raise DataError("clean_data needs all rows at hand, got a stream; load it as a Dataset")
    table = layouts.as_table(data)
    work = _Work(table, np.arange(table.num_rows), [])
    _drop_incomplete(work, trainer_type, kind)
    layout = layouts.recognise(work.table, trainer_type, kind, "the data")
    stripped = _strip(work, layout) if strip else 0
    if conversations:
        _drop_conversations(work, layout)
    if empty:
        _drop_empty(work, layout)
    if "rejected" in dict(layout.columns):
        texts = equal.part_texts(work.table, layout, "the data")
        same = pc.fill_null(pc.equal(texts["chosen"], texts["rejected"]), False)
        work.drop(same.to_numpy(), "chosen and rejected are equal")
    if not_in is not None:
        _drop_shared(work, layout, not_in, trainer_type)
    if duplicates:
        first = equal.first_of(equal.row_hashes(work.table, layout, "the data"))
        work.drop(first != np.arange(len(first)), "equal to an earlier row", first)
    if near_duplicates:
        _drop_near(work, layout, near_duplicates)
    if len(work.rows) == 0:
        report = CleanReport(table.num_rows, 0, stripped, tuple(work.dropped))
        raise DataError(
            "no row is left: "
            + ", ".join(f"{count} {reason}" for reason, count in report.reasons.items())
        )
    dropped = tuple(sorted(work.dropped, key=lambda drop: drop.row))
    report = CleanReport(table.num_rows, len(work.rows), stripped, dropped)
    if stripped:
        return dataset_of(work.table, data.features), report
    return (data.select(work.rows) if dropped else data), report


def _drop_incomplete(work: _Work, trainer_type: str | None, kind: str | None) -> None:
    """Drop rows without the parts of the layout that the others have."""
    allowed = layouts.allowed_kinds(work.table, trainer_type, kind)
    kinds, codes = layouts.row_kinds(work.table, allowed)
    found = [k for number, k in enumerate(kinds) if (codes == number).any()]
    columns = layouts.loose_columns(work.table.column_names)
    if len(found) != 1:
        return  # recognise refuses it
    lacking = codes == len(kinds)
    for part, names in KINDS[found[0]].needs.items():
        mine = layouts.columns_of(columns, names)
        null = np.logical_and.reduce([work.table.column(n).is_null().to_numpy() for n in mine])
        gone = lacking & null
        lacking = lacking[~gone]
        work.drop(gone, f"{part} is null")
    if found[0] == "kto" and trainer_type == "SFT":
        good = truth_values(work.table.column(columns["label"][0]))
        assert good is not None
        work.drop(~good, "label is false")


def _strip(work: _Work, layout: Layout) -> int:
    """Take blanks off texts; returns in how many rows there were some."""
    changed = np.zeros(work.table.num_rows, dtype=bool)
    for _, names in layout.columns:
        for name in names:
            column = work.table.column(name)
            if not is_text(column.type) or is_chat(column):
                continue
            bare = pc.utf8_trim_whitespace(column)
            changed |= pc.fill_null(pc.not_equal(bare, column), False).to_numpy()
            number = work.table.column_names.index(name)
            work.table = work.table.set_column(number, name, bare)
    return int(changed.sum())


def _drop_conversations(work: _Work, layout: Layout) -> None:
    for part, names in layout.columns:
        if part == "references" or not is_chat(work.table.column(names[0])):
            continue
        skipped = ("reply", "blank") if part == "prompt" else ()
        for problem, reason in _TURNS.items():
            if problem in skipped:
                continue
            turns = chats.turns_of(work.table.column(names[0]), f"the data, {part}")
            bad = chats.problems(turns).get(problem)
            if bad is not None:
                work.drop(bad, f"{part} {reason}")


def _drop_empty(work: _Work, layout: Layout) -> None:
    for part, names in layout.columns:
        if part not in _LEARNT or is_chat(work.table.column(names[0])):
            continue
        texts = equal.part_texts(work.table, layout, "the data")[part]
        work.drop(is_blank(texts), f"{part} is empty")


def _drop_shared(work: _Work, layout: Layout, not_in: Any, trainer_type: str | None) -> None:
    others = as_dataset(not_in, "not_in")
    table = layouts.as_table(others)
    theirs = layouts.recognise(table, trainer_type, layout.kind, "not_in")
    mine = equal.row_hashes(work.table, layout, "the data")
    shared = equal.shared_rows(mine, equal.row_hashes(table, theirs, "not_in"))
    work.drop(shared, "in the data to evaluate on")


def _drop_near(work: _Work, layout: Layout, near: float | bool) -> None:
    threshold = equal.THRESHOLD if near is True else float(near)
    texts = equal.row_keys(equal.part_texts(work.table, layout, "the data"))
    found = equal.near_duplicates(texts.to_pylist(), threshold)
    mask = np.zeros(len(work.rows), dtype=bool)
    first = np.zeros(len(work.rows), dtype=int)
    for row, of in found.items():
        mask[row], first[row] = True, of
    work.drop(mask, "nearly equal to an earlier row", first)
