"""What a check found: plain data, and how it is shown as text, as HTML and as a dict."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from html import escape
from typing import Any, Literal

from rapidfire_jupyter.data.layouts import Layout
from rapidfire_jupyter.data.lengths import Lengths
from rapidfire_jupyter.errors import DataError

Level = Literal["error", "warning", "note"]
_COLORS = {"error": "#c62828", "warning": "#b26a00", "note": "inherit"}


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        kind: What it is about, such as "duplicates"; stable, for programs.
        level: An error cannot be trained; a warning should be looked at; a note tells of a choice.
        part: "train" or "eval".
        count: Rows it holds for.
        rows: The first ten of them, counted from 1.
        text: A sentence for people.
    """

    kind: str
    level: Level
    part: str
    count: int
    rows: tuple[int, ...]
    text: str

    def __str__(self) -> str:
        if not self.rows:
            return f"{self.part}: {self.text}"
        more = ", ..." if self.count > len(self.rows) else ""
        rows = "row" if self.count == 1 else "rows"
        return f"{self.part}: {self.text} ({rows} {', '.join(map(str, self.rows))}{more})"


@dataclass(frozen=True)
class Part:
    """One data set that was checked.

    Attributes:
        layouts: Rows by layout; "none" for those of no one layout.
        layout: What its columns mean; None if that could not be told.
        lengths: Its tokens; None without a tokenizer.
    """

    name: str
    rows: int
    layouts: tuple[tuple[str, int], ...]
    layout: Layout | None
    lengths: Lengths | None = None


@dataclass(frozen=True, repr=False)
class DataReport:
    """The report of `check_data`."""

    parts: tuple[Part, ...]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What cannot be trained."""
        return tuple(f for f in self.findings if f.level == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What should be looked at."""
        return tuple(f for f in self.findings if f.level == "warning")

    @property
    def notes(self) -> tuple[Finding, ...]:
        """Choices that were made."""
        return tuple(f for f in self.findings if f.level == "note")

    def refuse(self) -> None:
        """Raise if something cannot be trained.

        Raises:
            DataError: The first error's sentence, and how many more there are.
        """
        if self.errors:
            more = f" (and {len(self.errors) - 1} more: see check_data)" * (len(self.errors) > 1)
            raise DataError(f"{self.errors[0]}{more}")

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, for JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for part in self.parts:
            yield f"{part.name}: {_summary(part)}"
            if part.lengths is not None:
                yield f"  tokens: {_tokens(part.lengths)}"
                for limit in part.lengths.limits:
                    yield (
                        f"  max_length={limit.max_length}: {row_count(limit.truncated)} truncated, "
                        f"{limit.emptied} with nothing left to learn"
                    )
        for finding in self.findings:
            yield f"{finding.level.upper()}: {finding}"
        if not self.findings:
            yield "nothing to complain about"

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><td style="color:{_COLORS[f.level]}">{f.level}</td><td>{escape(f.part)}</td>'
            f'<td style="text-align:right">{f.count}</td>'
            f'<td style="text-align:left">{escape(f.text)}</td>'
            f'<td style="text-align:left">{", ".join(map(str, f.rows))}'
            f"{', ...' if f.count > len(f.rows) > 0 else ''}</td></tr>"
            for f in self.findings
        )
        table = (
            "<table><thead><tr><th></th><th>data</th><th>rows</th><th>found</th>"
            f"<th>row numbers</th></tr></thead><tbody>{rows}</tbody></table>"
            if rows
            else "<div>nothing to complain about</div>"
        )
        return f"<div>{''.join(map(_part_html, self.parts))}{table}</div>"


def row_count(count: int) -> str:
    """A number of rows in words."""
    return f"{count} row" if count == 1 else f"{count} rows"


def _summary(part: Part) -> str:
    kinds = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in part.layouts)
    chat = " of messages" if part.layout is not None and part.layout.conversational else ""
    return f"{row_count(part.rows)} ({kinds}{chat})"


def _tokens(lengths: Lengths) -> str:
    return (
        f"{lengths.least} to {lengths.most}, median {lengths.median:g}, "
        f"95 % have at most {lengths.high:g}"
    )


def _part_html(part: Part) -> str:
    head = f"<div><b>{escape(part.name)}</b>: {escape(_summary(part))}</div>"
    if part.lengths is None:
        return head
    lengths = part.lengths
    most = max(*lengths.counts, 1)
    bars = "".join(
        f'<div title="{low} to {high - 1} tokens: {row_count(count)}" style="flex:1;'
        f"height:{max(count / most * 40, 1 if count else 0):.0f}px;background:#5b8def;"
        'margin-right:1px"></div>'
        for low, high, count in zip(lengths.edges, lengths.edges[1:], lengths.counts, strict=False)
    )
    limits = "".join(
        f"<tr><td>{limit.max_length}</td><td>{limit.truncated}</td><td>{limit.emptied}</td></tr>"
        for limit in lengths.limits
    )
    table = (
        "<table><thead><tr><th>max_length</th><th>truncated</th><th>nothing left</th></tr></thead>"
        f"<tbody>{limits}</tbody></table>"
        if limits
        else ""
    )
    return (
        f"{head}<div>tokens: {_tokens(lengths)}</div>"
        '<div style="display:flex;align-items:flex-end;height:42px;width:320px">'
        f"{bars}</div>{table}"
    )
