"""Which layout a data set has: by its columns' names, and by which of them a row fills.

Names are compared without case and without blanks around them. Of several layouts that all rows
fill, the first in `FOR_TRAINER` is used, and a note says which columns are not. Rows of different
layouts are refused with their counts, unless `kind` says which is meant.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from rapidfire_jupyter.data.columns import rows_table
from rapidfire_jupyter.data.kinds import FOR_TRAINER, GENERATING, KINDS, REWARDED
from rapidfire_jupyter.data.values import refuse_columns, truth_values
from rapidfire_jupyter.errors import DataError

SAMPLE_ROWS = 100
_ANY = ("DPO", "SFT", "GRPO")  # tried in this order where no trainer is given
# Columns that the trainer hands its model as they are: only numbers will do.
_MODEL_COLUMNS = ("input_ids", "labels", "attention_mask", "position_ids", "completion_mask")
# Keywords of GRPO's and RLOO's own that their reward functions are called with.
_RESERVED = (
    "prompts",
    "completions",
    "trainer_state",
    "log_extra",
    "log_metric",
    "environments",
)


@dataclass(frozen=True)
class Layout:
    """What a data set's columns mean.

    Attributes:
        kind: A key of `KINDS`.
        trainer_type: The trainer it was recognised for; None if for any.
        columns: For each part of the kind that is there, the columns that hold it: one, or several
            whose names differ in case or blanks only.
        conversational: Whether its parts are lists of messages, not texts.
        unused: Columns with no part in it.
        notes: What a user should know: choices made, columns ignored, values converted.
    """

    kind: str
    trainer_type: str | None
    columns: tuple[tuple[str, tuple[str, ...]], ...]
    conversational: bool
    unused: tuple[str, ...]
    notes: tuple[str, ...]


def recognise(
    data: Any, trainer_type: str | None = None, kind: str | None = None, what: str = "the data"
) -> Layout:
    """Tell the layout of a data set, and refuse what cannot be trained.

    Args:
        data: A datasets.Dataset or IterableDataset (its first 100 rows count), or a pyarrow.Table.
            Any: the three share no type.
        trainer_type: A key of `FOR_TRAINER`, such as "SFT"; None allows the layouts of all.
        kind: The layout to use, where rows fill several.
        what: How messages call the data.

    Raises:
        DataError: Columns are of no known layout, or hold what no trainer can use; rows are of
            several layouts or lack a part.
    """
    table = as_table(data)
    allowed = allowed_kinds(table, trainer_type, kind)
    columns = loose_columns(table.column_names)
    _refuse_model_columns(table, what)
    kinds, codes = row_kinds(table, allowed)
    counts = np.bincount(codes, minlength=len(kinds) + 1)
    found = [k for k, n in zip(kinds, counts, strict=False) if n]
    if not found:
        raise DataError(_unknown(table, trainer_type, allowed, what))
    if len(found) > 1:
        parts = [f"{counts[kinds.index(k)]} of {_named(k)}" for k in found]
        none = f", {counts[-1]} of none" if counts[-1] else ""
        raise DataError(
            f"{what} has rows of several layouts: {', '.join(parts)}{none}; keep one of them, or "
            "write a formatting_func"
        )
    chosen = found[0]
    _refuse_incomplete(table, chosen, codes == len(kinds), columns, what)
    used = {
        part: columns_of(columns, names)
        for part, names in {**KINDS[chosen].needs, **KINDS[chosen].may}.items()
        if columns_of(columns, names)
    }
    _refuse_doubles(table, used, what)
    if trainer_type in REWARDED:
        _refuse_reserved(table, used, trainer_type, what)
    conversational, notes = refuse_columns(table, used, what)
    if chosen == "kto" and trainer_type == "SFT":
        _refuse_bad_answers(table, used["label"][0], what)
    notes = (*notes, *_choice_notes(table, allowed, chosen, used, trainer_type))
    unused = tuple(n for n in table.column_names if not any(n in names for names in used.values()))
    return Layout(chosen, trainer_type, tuple(used.items()), conversational, unused, notes)


def as_table(data: Any) -> pa.Table:
    """The rows of a data set as Arrow has them, without copying; of a stream its first 100."""
    if isinstance(data, pa.Table):
        return data
    if not hasattr(data, "with_format") or not hasattr(data, "__len__"):
        return rows_table([dict(row) for row in islice(iter(data), SAMPLE_ROWS)], "the stream")
    return data.with_format("arrow")[:].replace_schema_metadata(None)


def loose_columns(names: list[str]) -> dict[str, tuple[str, ...]]:
    """Columns by their names without case and without blanks around them."""
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        key = name.strip().casefold()
        found[key] = (*found.get(key, ()), name)
    return found


def columns_of(columns: Mapping[str, tuple[str, ...]], names: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that hold a part: those of the first of its names that is there."""
    return next((columns[name] for name in names if name in columns), ())


def row_kinds(
    table: pa.Table, allowed: tuple[str, ...]
) -> tuple[list[str], "np.ndarray[Any, Any]"]:
    """The layout of each row.

    Returns:
        Layouts, and for each row the number of its one; the number after the last for none.
    """
    columns = loose_columns(table.column_names)
    kinds = [k for k in allowed if _has_columns(columns, k)]
    if "label" in columns and truth_values(table.column(columns["label"][0])) is None:
        kinds = [k for k in kinds if "label" not in KINDS[k].needs]
    codes = np.full(table.num_rows, len(kinds), dtype=np.int64)
    for number, kind in reversed(list(enumerate(kinds))):
        full = np.ones(table.num_rows, dtype=bool)
        for names in KINDS[kind].needs.values():
            full &= _filled(table, columns_of(columns, names))
        codes[full] = number
    return kinds, codes


def _filled(table: pa.Table, names: tuple[str, ...]) -> "np.ndarray[Any, Any]":
    filled = np.zeros(table.num_rows, dtype=bool)
    for name in names:
        filled |= table.column(name).is_valid().to_numpy()
    return filled


def allowed_kinds(
    table: pa.Table, trainer_type: str | None, kind: str | None = None
) -> tuple[str, ...]:
    """The layouts that rows may have: a trainer's; without one, of the first with the columns.

    Raises:
        DataError: The trainer type or the kind is unknown.
    """
    if trainer_type is not None and trainer_type not in FOR_TRAINER:
        raise DataError(
            f"no layout is known for trainer_type={trainer_type!r}; it must be one of "
            f"{', '.join(FOR_TRAINER)}"
        )
    trainers = _ANY if trainer_type is None else (trainer_type,)
    if kind is not None:
        known = [k for trainer in trainers for k in FOR_TRAINER[trainer]]
        if kind not in known:
            raise DataError(f"kind must be one of {', '.join(known)}, got {kind!r}")
        return (kind,)
    columns = loose_columns(table.column_names)
    for trainer in trainers:
        if any(_has_columns(columns, k) for k in FOR_TRAINER[trainer]):
            return FOR_TRAINER[trainer]
    return FOR_TRAINER[trainers[0]] if len(trainers) == 1 else tuple(KINDS)


def _has_columns(columns: Mapping[str, tuple[str, ...]], kind: str) -> bool:
    return all(columns_of(columns, names) for names in KINDS[kind].needs.values())


def _named(kind: str) -> str:
    return f"{kind.replace('_', ' ')} ({', '.join(KINDS[kind].needs)})"


def _unknown(table: pa.Table, trainer_type: str | None, allowed: tuple[str, ...], what: str) -> str:
    columns = loose_columns(table.column_names)
    if trainer_type == "KTO" and "label" in columns:
        label = table.column(columns["label"][0])
        if truth_values(label) is None:
            return f"{what}: the column 'label' must hold true or false, it holds {label.type}"
    started = [k for k in allowed if _has_columns(columns, k)]
    if started and table.num_rows:
        gaps = [n for n in KINDS[started[0]].needs.values()]
        names = ", ".join(repr(name) for n in gaps for name in columns_of(columns, n))
        return f"{what}: in each of its {table.num_rows} rows, one of {names} is null; fill them"
    known = "; ".join(_columns_text(k) for k in allowed)
    other = _other_trainer(table, trainer_type)
    example = "prompt_completion" if "prompt_completion" in allowed else allowed[0]
    return (
        f"{what} has the columns {', '.join(table.column_names)}, which are no layout known"
        f"{f' for {trainer_type}' if trainer_type else ''}{other}; known are {known}; for example "
        f"{KINDS[example].example}; rename the columns, or give a formatting_func"
    )


def _columns_text(kind: str) -> str:
    needs, may = KINDS[kind].needs, KINDS[kind].may
    parts = [" or ".join(names) for names in needs.values()]
    return " + ".join(parts) + (f" (with or without {', '.join(may)})" if may else "")


def _other_trainer(table: pa.Table, trainer_type: str | None) -> str:
    """A hint if the columns are of a layout of another trainer."""
    kinds, _ = row_kinds(table, ("instruction_kto", *(k for t in _ANY for k in FOR_TRAINER[t])))
    if trainer_type is None or not kinds:
        return ""
    if trainer_type == "KTO" and "preference" in kinds[0]:
        return " (they are pairs: trl.data_utils.unpair_preference_dataset makes labels of them)"
    trainers = [t for t, known in FOR_TRAINER.items() if kinds[0] in known]
    return f" (they are {kinds[0].replace('_', ' ')}, for {' or '.join(trainers)})"


def _refuse_incomplete(
    table: pa.Table,
    kind: str,
    lacking: "np.ndarray[Any, Any]",
    columns: Mapping[str, tuple[str, ...]],
    what: str,
) -> None:
    if not lacking.any():
        return
    parts = []
    for names in KINDS[kind].needs.values():
        found = columns_of(columns, names)
        gaps = lacking & ~_filled(table, found)
        if gaps.any():
            parts.append(f"{found[0]!r} is null in {rows_text(gaps)}")
    raise DataError(f"{what}: {' and '.join(parts)}; fill them, or drop these rows with clean_data")


def rows_text(mask: "np.ndarray[Any, Any]") -> str:
    """Rows of a mask in words, counted from 1: how many, and the first five."""
    numbers = np.flatnonzero(mask) + 1
    shown = ", ".join(map(str, numbers[:5]))
    some = ", ..." if len(numbers) > 5 else ""
    rows = "row" if len(numbers) == 1 else "rows"
    return f"{rows} {shown}{some}" + (f" ({len(numbers)} in all)" if some else "")


def _refuse_doubles(table: pa.Table, used: Mapping[str, tuple[str, ...]], what: str) -> None:
    for names in used.values():
        for other in names[1:]:
            both = table.column(names[0]).is_valid().to_numpy()
            both &= table.column(other).is_valid().to_numpy()
            if both.any():
                raise DataError(
                    f"{what}: the columns {names[0]!r} and {other!r} mean the same and are both "
                    f"filled in {rows_text(both)}; rename or remove one"
                )


def _refuse_model_columns(table: pa.Table, what: str) -> None:
    for name in _MODEL_COLUMNS:
        if name in table.column_names:
            kind = table.schema.field(name).type
            inner = (
                kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else kind
            )
            if inner is kind or not (pa.types.is_integer(inner) or pa.types.is_boolean(inner)):
                raise DataError(
                    f"{what}: the column {name!r} must hold lists of token ids, it holds {kind}; "
                    "rename or remove it"
                )


def _refuse_reserved(
    table: pa.Table, used: Mapping[str, tuple[str, ...]], trainer_type: str, what: str
) -> None:
    taken = [n for n in table.column_names if n in _RESERVED and n not in used]
    if taken:
        raise DataError(
            f"{what}: {trainer_type} gives its reward functions arguments of the names "
            f"{', '.join(taken)}, so no column may have them; rename "
            f"{'it' if len(taken) == 1 else 'them'}"
        )


def _refuse_bad_answers(table: pa.Table, label: str, what: str) -> None:
    good = truth_values(table.column(label))
    assert good is not None
    bad = ~good
    if bad.any():
        raise DataError(
            f"{what}: {label!r} is false in {rows_text(bad)}, and SFT would learn those answers "
            "as good ones; keep only rows where it is true"
        )


def _choice_notes(
    table: pa.Table,
    allowed: tuple[str, ...],
    chosen: str,
    used: Mapping[str, tuple[str, ...]],
    trainer_type: str | None,
) -> list[str]:
    """What was chosen where there was a choice, and columns that look used but are not."""
    notes = []
    taken = {name for names in used.values() for name in names}
    rest = [n for n in table.column_names if n not in taken]
    also = dict.fromkeys(
        name
        for kind in allowed
        for part in KINDS[kind].needs
        for name in rest
        if part == name and part != "label" and table.column(name).null_count < table.num_rows
    )
    if also and trainer_type not in GENERATING:
        mine = ", ".join(name for names in used.values() for name in names)
        notes.append(f"used: {mine}; not used, though a layout too: {', '.join(also)}")
    for name in ("label", "margin"):
        if name in rest and trainer_type is not None and trainer_type not in REWARDED:
            if (name, trainer_type) == ("margin", "Reward"):
                continue  # a margin that its loss asks for
            notes.append(f"the column {name!r} is not used by {trainer_type}")
    if trainer_type in REWARDED:
        for name in rest:
            if nulls := table.column(name).null_count:
                gaps = table.column(name).is_null().to_numpy()
                notes.append(
                    f"the column {name!r} is null in {rows_text(gaps)}: reward functions get None"
                    if nulls < table.num_rows
                    else f"the column {name!r} is null in all rows"
                )
    if chosen == "kto" and trainer_type == "SFT":
        notes.append("the column 'label' is true in all rows: it is not used by SFT")
    for part, names in used.items():
        if names != (part,):
            verb = "is" if len(names) == 1 else "are"
            notes.append(f"{' and '.join(map(repr, names))} {verb} taken as {part}")
    return notes
