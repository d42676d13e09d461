"""What can be taken away: the log as CSV or parquet, and the report as a page."""

import csv
import io
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.events import Event
from rapidfire_jupyter.state import history
from rapidfire_jupyter.ui.fold import Fold
from rapidfire_jupyter.ui.report import report_html
from rapidfire_jupyter.ui.view import Facts

MIME = {
    "csv": "text/csv",
    "parquet": "application/vnd.apache.parquet",
    "html": "text/html",
}
_FIRST = ("run", "name", "step", "chunk")


def content(kind: str, name: str, events: list[Event], status: str) -> bytes:
    """The bytes of an export.

    Args:
        kind: A key of `MIME`.
        name: The experiment's name.
        events: Its whole log.
        status: As `Experiment.status`.
    """
    if kind == "html":
        return report_html(Fold().read(events), Facts(name, status)).encode("utf-8", "replace")
    rows = logged_rows(events)
    return _csv(rows) if kind == "csv" else _parquet(rows)


def logged_rows(events: list[Event]) -> list[dict[str, Any]]:
    """Every logged row of every run that is not deleted, with run, name, step and chunk.

    Any: numbers and texts.
    """
    rows = []
    for run in Fold().read(e for e in events if e.kind != "logged").state.runs.values():
        if run.status != "deleted":
            for row in history(events, run.id):
                chunk = sum(end < row["step"] for end in run.chunk_ends) + 1
                rows.append({"run": run.id, "name": run.name, "chunk": chunk, **row})
    return rows


def _columns(rows: Iterable[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys([*_FIRST, *(name for row in rows for name in row)]))


def _csv(rows: list[dict[str, Any]]) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, _columns(rows), restval="")
    writer.writeheader()
    writer.writerows({k: _no_formula(v) for k, v in row.items()} for row in rows)
    return file.getvalue().encode("utf-8", "replace")


def _no_formula(value: Any) -> Any:  # Any: a cell
    """A name that spreadsheets would take for a formula, as text."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" and value else value


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    import pandas as pd

    try:
        return bytes(pd.DataFrame(rows, columns=_columns(rows)).to_parquet(index=False))
    except ImportError as error:
        raise OpError("parquet needs the package pyarrow; run `pip install pyarrow`") from error


def file_name(name: str, kind: str) -> str:
    """A file's name for an export of an experiment."""
    return f"{re.sub(r'[^-._A-Za-z0-9]+', '_', name)}.{kind}"


def relative(folder: Path | None, run: int) -> str:
    """An adapter's folder, from the kernel's directory.

    Raises:
        OpError: There is none yet.
    """
    if folder is None:
        raise OpError(f"run {run} has no checkpoint yet; wait for its first chunk")
    return os.path.relpath(folder)
