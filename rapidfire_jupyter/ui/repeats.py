"""Repeated lines of a log, told once: libraries print the same warning for every run and chunk."""

from collections.abc import Sequence

_LONGEST = 4  # lines of what is repeated as a whole
_WARNING = "Warning: "


def folded(lines: Sequence[str]) -> list[str]:
    """Lines in which what was repeated stands once, with how often: "(×12)".

    Stretches that follow each other are folded, and warnings wherever they come again: they stay
    where they came last.
    """
    return _in_a_row(_warnings(lines))


def _warnings(lines: Sequence[str]) -> list[str]:
    blocks: list[tuple[str, ...]] = []
    for line in lines:
        # The second line of a warning is the indented source line that gave it.
        if blocks and len(blocks[-1]) == 1 and _WARNING in blocks[-1][0] and line[:1] == " ":
            blocks[-1] = (*blocks[-1], line)
        else:
            blocks.append((line,))
    counts: dict[tuple[str, ...], int] = {}
    kept: list[str] = []
    for block in blocks:
        counts[block] = counts.get(block, 0) + 1
    left = dict(counts)
    for block in blocks:
        left[block] -= 1
        if _WARNING not in block[0]:
            kept += block
        elif not left[block]:
            kept += [_told(block[0], counts[block]), *block[1:]]
    return kept


def _in_a_row(lines: Sequence[str]) -> list[str]:
    kept: list[str] = []
    at = 0
    while at < len(lines):
        size, count = _repeated(lines, at)
        kept += [_told(lines[at], count), *lines[at + 1 : at + size]]
        at += size * count
    return kept


def _repeated(lines: Sequence[str], at: int) -> tuple[int, int]:
    """How many lines are repeated from here on, and how often they come."""
    for size in range(1, _LONGEST + 1):
        block, count = lines[at : at + size], 1
        while lines[at + count * size : at + (count + 1) * size] == block:
            count += 1
        if count > 1 and any(line.strip() for line in block):
            return size, count
    return 1, 1


def _told(line: str, count: int) -> str:
    return f"{line} (×{count})" if count > 1 else line
