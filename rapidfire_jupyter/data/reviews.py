"""Rows that a person looks at one by one: which, how they read, and what was decided of them.

A row is known by its content: what is decided of it holds wherever it stands, in any order, beside
any other rows, and for each of its equals. A row that was changed is another row.
"""

import heapq
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from rapidfire_jupyter import storage
from rapidfire_jupyter.data.clean import CleanReport, Dropped
from rapidfire_jupyter.data.columns import python_values
from rapidfire_jupyter.data.layouts import recognise
from rapidfire_jupyter.data.mapping import to_trl
from rapidfire_jupyter.data.sets import as_dataset
from rapidfire_jupyter.errors import DataError

FILE = "review.json"
_BATCH = 10_000  # rows that are read at once
_TALK = SimpleNamespace(chat_template="any")  # instructions become turns, which read best
_NAMES = {"completion": "answer"}
Verdict = Literal["keep", "drop", ""]


@dataclass(frozen=True)
class Decision:
    """What was decided of a row.

    Attributes:
        verdict: Whether to keep or drop it; empty if it has a note only.
        note: Why, or whatever else there is to say.
        text: How the row begins, for who reads the file.
    """

    verdict: Verdict = ""
    note: str = ""
    text: str = ""


@dataclass(frozen=True)
class Piece:
    """A part of a row as it is read: who says it or which column it is, and the text."""

    name: str
    text: str
    column: bool = False


def reviewable(data: Any) -> Any:
    """A data set whose rows can be reviewed. Any: as `as_dataset`.

    Raises:
        DataError: It is a stream, or no data set.
    """
    dataset = as_dataset(data, "the data")
    if not hasattr(dataset, "__len__"):
        raise DataError("a review needs all rows at hand, got a stream; load it as a Dataset")
    return dataset


def row_keys(dataset: Any) -> Iterator[str]:
    """A digest of each row's content; columns count by name, and not where they are null."""
    from xxhash import xxh3_128_hexdigest

    for start in range(0, len(dataset), _BATCH):
        stop = min(start + _BATCH, len(dataset))
        table = dataset.with_format("arrow")[start:stop]
        columns = {name: python_values(table.column(name)) for name in sorted(table.column_names)}
        for values in zip(*columns.values(), strict=True):
            row = {n: v for n, v in zip(columns, values, strict=True) if v is not None}
            text = json.dumps(row, ensure_ascii=False, sort_keys=True, default=repr)
            yield xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))


def choose(dataset: Any, n: int, seed: int) -> dict[str, int]:
    """`n` different rows: their keys, and where each first stands, from 0, in order.

    Which they are depends on their content and the seed only: other orders of the rows, and most
    rows that are added, change nothing.
    """
    from xxhash import xxh3_64_intdigest

    first: dict[str, int] = {}
    for number, key in enumerate(row_keys(dataset)):
        first.setdefault(key, number)
    chosen = heapq.nsmallest(n, first, key=lambda key: (xxh3_64_intdigest(key.encode(), seed), key))
    return {key: first[key] for key in sorted(chosen, key=first.__getitem__)}


def pieces(dataset: Any, number: int, trainer_type: str | None, kind: str | None) -> list[Piece]:
    """A row as it is read: the turns of a chat, or prompt and answer, and then its other columns.

    A row of no known layout is read column by column.

    Args:
        number: The row's, from 0.
        trainer_type: As for `check_data`.
        kind: As for `check_data`.
    """
    one = dataset.select([number])
    try:
        layout = recognise(one, trainer_type, kind)
        mapped = to_trl(one, layout, _TALK)
    except DataError:
        return [Piece(name, _text(value), True) for name, value in _row(one).items()]
    row, beside = _row(mapped), {name: _row(one).get(name) for name in layout.unused}
    read = [
        piece
        for name, value in row.items()
        if name not in beside
        for piece in _read(_NAMES.get(name, name), value)
    ]
    return read + [Piece(n, _text(v), True) for n, v in beside.items() if v is not None]


def read(file: Path) -> dict[str, Decision]:
    """The decisions in a file, by row; none if there is no such file.

    Raises:
        DataError: It is no file of a review.
    """
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        return {
            key: Decision(_verdict(one["verdict"]), str(one["note"]), str(one["text"]))
            for key, one in told["rows"].items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{file} cannot be read as a review ({error!r}); mend it, or move it away"
        ) from error


def write(file: Path, key: str, decision: Decision) -> dict[str, Decision]:
    """Put a decision into a file, on disk when this returns; gives all decisions in it.

    Those that another kernel wrote there meanwhile stay.

    Raises:
        DataError: The file is no review's, or cannot be written.
    """
    rows = read(file)
    rows.pop(key, None)
    if decision.verdict or decision.note:
        rows[key] = decision
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        told = {key: asdict(one) for key, one in rows.items()}
        storage.write_json(file, {"version": 1, "rows": told})
    except OSError as error:
        raise DataError(f"{file} cannot be written ({error.strerror}); nothing is saved") from error
    return rows


def without_dropped(dataset: Any, decisions: Mapping[str, Decision]) -> tuple[Any, CleanReport]:
    """The rows that were not dropped, in their order, and what was dropped with its notes."""
    dropped = []
    for number, key in enumerate(row_keys(dataset), start=1):
        decision = decisions.get(key, Decision())
        if decision.verdict == "drop":
            note = " ".join(decision.note.split())
            dropped.append(Dropped(number, f"in review: {note}" if note else "in review"))
    gone = {drop.row for drop in dropped}
    left = [row for row in range(len(dataset)) if row + 1 not in gone]
    if not left:
        raise DataError("no row is left: all of them were dropped in review; keep some")
    report = CleanReport(len(dataset), len(left), 0, tuple(dropped))
    return (dataset.select(left) if gone else dataset), report


def _verdict(word: str) -> Verdict:
    if word not in ("keep", "drop", ""):
        raise ValueError(f"verdict {word!r}")
    return word  # type: ignore[return-value]


def _row(dataset: Any) -> dict[str, Any]:
    table = dataset.with_format("arrow")[:]
    return {name: python_values(table.column(name))[0] for name in table.column_names}


def _read(name: str, value: Any) -> list[Piece]:
    """A column of TRL's: the turns of a chat, each with its role, or one text."""
    if not isinstance(value, list) or not all(isinstance(turn, dict) for turn in value):
        return [Piece(name, _text(value))]
    side = f" ({name})" if name in ("chosen", "rejected") else ""
    found = []
    for turn in value:
        content = turn.get("content")
        found.append(Piece(f"{turn.get('role')}{side}", _text(content)))
        rest = {k: v for k, v in turn.items() if k not in ("role", "content") and v is not None}
        found += [Piece(f"{turn.get('role')}{side}: {k}", _text(v)) for k, v in rest.items()]
    return found


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return "\n".join(value)
    if isinstance(value, bytes):
        return f"({len(value)} bytes)"
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False, default=_odd)


def _odd(value: object) -> str:
    return f"({len(value)} bytes)" if isinstance(value, bytes) else str(value)
