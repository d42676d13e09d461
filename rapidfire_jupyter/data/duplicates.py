"""Rows that are equal, and rows that are nearly so.

Two rows are equal if all parts of their layout are; other columns do not count. They are nearly
equal if they share most of their five-letter pieces (Jaccard similarity), without case and with
blanks run together: MinHash finds candidates, and each is then measured exactly.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rapidfire_jupyter.data.conversations import joined_texts, turns_of
from rapidfire_jupyter.data.layouts import Layout
from rapidfire_jupyter.data.values import is_chat, text_column
from rapidfire_jupyter.errors import DataError

PIECE = 5  # letters
PERMUTATIONS = 64
THRESHOLD = 0.85
_LSH_MOST = 0.9  # over it datasketch finds no bands; candidates are measured anyway
BATCH = 50_000  # rows that are hashed at once
Numbers = Any  # a numpy array of whole numbers or booleans, one per row
Hashes = Any  # a numpy array of whole numbers, two per row


def part_texts(table: pa.Table, layout: Layout, what: str) -> dict[str, pa.ChunkedArray]:
    """Each part of a layout as one text per row; a conversation as its roles and texts."""
    texts = {}
    for part, names in layout.columns:
        columns = [
            _text(table.column(name), layout.conversational, f"{what}, column {name!r}")
            for name in names
        ]
        texts[part] = columns[0] if len(columns) == 1 else pc.coalesce(*columns)
    return texts


def row_keys(texts: dict[str, pa.ChunkedArray]) -> pa.ChunkedArray:
    """One text per row, the same for equal rows only."""
    if len(texts) == 1:
        return pc.fill_null(next(iter(texts.values())), "")
    columns = [pc.fill_null(column, "\x1c") for column in texts.values()]
    return pc.binary_join_element_wise(*columns, "\x1d")


def row_hashes(table: pa.Table, layout: Layout, what: str) -> Hashes:
    """A hash of 128 bits for each row, the same for equal rows; in batches, so little is copied."""
    from xxhash import xxh3_128_digest

    digests = []
    for start in range(0, table.num_rows, BATCH):
        keys = row_keys(part_texts(table.slice(start, BATCH), layout, what))
        digests.append(b"".join(map(xxh3_128_digest, keys.cast(pa.binary()).to_pylist())))
    return np.frombuffer(b"".join(digests), dtype=np.uint64).reshape(-1, 2)


def first_of(hashes: Hashes) -> Numbers:
    """For each row the number of the first row equal to it, which may be itself."""
    _, firsts, of = np.unique(hashes[:, 0], return_index=True, return_inverse=True)
    first = firsts[of]
    return np.where(hashes[:, 1] == hashes[first, 1], first, np.arange(len(first)))


def shared_rows(hashes: Hashes, others: Hashes) -> Numbers:
    """Which rows are among others, as a mask."""
    return np.isin(hashes[:, 0], others[:, 0]) & np.isin(hashes[:, 1], others[:, 1])


def shared_texts(texts: pa.ChunkedArray, others: pa.ChunkedArray) -> Numbers:
    """Which texts are among others, as a mask."""
    return np.asarray(pc.is_in(texts, others).to_numpy(), dtype=bool)


def near_duplicates(texts: Sequence[str], threshold: float = THRESHOLD) -> dict[int, int]:
    """Rows that are nearly equal to a row before them, and that row.

    Args:
        threshold: Least share of pieces in common, over 0 and at most 1.

    Raises:
        DataError: The threshold is none, or the package datasketch is not installed.
    """
    if not 0 < threshold <= 1:
        raise DataError(f"the near-duplicate threshold must be over 0 and <= 1, got {threshold!r}")
    try:
        from datasketch import MinHash, MinHashLSH  # type: ignore[import-untyped]
    except ImportError as error:
        raise DataError(
            "near-duplicates are found with the package datasketch, which is not installed; run "
            "`pip install datasketch`"
        ) from error
    import xxhash

    index = MinHashLSH(threshold=min(threshold, _LSH_MOST), num_perm=PERMUTATIONS)
    found: dict[int, int] = {}
    for row, text in enumerate(texts):
        pieces = _pieces(text)
        if not any(pieces):
            continue
        sketch = MinHash(num_perm=PERMUTATIONS, hashfunc=xxhash.xxh32_intdigest)
        sketch.update_batch(pieces)
        for other in sorted(index.query(sketch)):
            theirs = _pieces(texts[other])
            if len(pieces & theirs) >= threshold * len(pieces | theirs):
                found[row] = other
                break
        else:
            index.insert(row, sketch)
    return found


def has_datasketch() -> bool:
    """Whether near-duplicates can be looked for."""
    from importlib.util import find_spec

    return find_spec("datasketch") is not None


def _pieces(text: str) -> set[bytes]:
    text = " ".join(text.casefold().split())
    return {text[i : i + PIECE].encode() for i in range(max(1, len(text) - PIECE + 1))}


def _text(column: pa.ChunkedArray, conversational: bool, where: str) -> pa.ChunkedArray:
    if pa.types.is_null(column.type):
        return pa.chunked_array([pa.nulls(len(column), pa.string())])
    if conversational and is_chat(column):
        return pa.chunked_array([joined_texts(turns_of(column, where))])
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        inner = column.cast(pa.list_(pa.string()))
        return pc.binary_join(inner, "\x1f")
    return text_column(column)
