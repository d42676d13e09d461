"""`split_data`: one data set in two, to train and to evaluate on, the same for the same seed.

Equal rows go to the same side, so that nothing that is evaluated was trained on.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from rapidfire_jupyter.data import duplicates, layouts
from rapidfire_jupyter.data.sets import as_dataset
from rapidfire_jupyter.data.values import is_text
from rapidfire_jupyter.errors import DataError


def split_data(
    data: Any, eval_fraction: float = 0.15, seed: int = 42, stratify: str | None = None
) -> tuple[Any, Any]:
    """Draw rows to evaluate on; the others are to train on. Both keep the order of the data.

    Args:
        data: A datasets.Dataset, a list of dicts or a DataFrame. Any: they share no type.
        eval_fraction: Share of rows to evaluate on, over 0 and under 1.
        seed: The same seed draws the same rows.
        stratify: A column: each of its values has that share too, to a row. A value that only one
            row has stays in training.

    Returns:
        Two datasets.Datasets: to train on, and to evaluate on.

    Raises:
        DataError: An argument cannot be used, or there are too few different rows.
    """
    if isinstance(eval_fraction, bool) or not isinstance(eval_fraction, int | float):
        raise DataError(f"eval_fraction must be a number, got {eval_fraction!r}")
    if not 0 < eval_fraction < 1:
        raise DataError(f"eval_fraction must be over 0 and under 1, got {eval_fraction!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise DataError(f"seed must be a whole number >= 0, got {seed!r}")
    data = as_dataset(data, "the data")
    if not hasattr(data, "__len__"):
        raise DataError("split_data needs all rows at hand, got a stream; load it as a Dataset")
    table = layouts.as_table(data)
    first = _first_equal(table)
    strata = np.zeros(len(first), dtype=int) if stratify is None else column_codes(table, stratify)
    drawn = _draw(first, strata, eval_fraction, np.random.default_rng(seed))
    if not drawn.any() or drawn.all():
        different = len(np.unique(first))
        raise DataError(
            f"{len(first)} rows, {different} of them different, are too few to draw "
            f"eval_fraction={eval_fraction:g} of them; give more rows, or another fraction"
        )
    return data.select(np.flatnonzero(~drawn)), data.select(np.flatnonzero(drawn))


def _first_equal(table: pa.Table) -> "np.ndarray[Any, Any]":
    """For each row the first row equal to it; where no layout is known, each row is its own."""
    try:
        layout = layouts.recognise(table)
        hashes = duplicates.row_hashes(table, layout, "the data")
    except DataError:
        return np.arange(table.num_rows)
    return np.asarray(duplicates.first_of(hashes))


def column_codes(table: pa.Table, name: str) -> "np.ndarray[Any, Any]":
    """A number for each row, the same for rows of the same value; from 0, in order of appearance.

    Raises:
        DataError: There is no such column, or it holds anything but texts, numbers or truth values.
    """
    if name not in table.column_names:
        raise DataError(
            f"stratify must be a column, got {name!r}; there are {', '.join(table.column_names)}"
        )
    kind = table.schema.field(name).type
    if not (is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"stratify needs a column of texts, whole numbers or truth values, but {name!r} holds "
            f"{kind}"
        )
    values = table.column(name).combine_chunks().dictionary_encode(null_encoding="encode")
    return np.asarray(values.indices.to_numpy())


def _draw(
    first: "np.ndarray[Any, Any]",
    strata: "np.ndarray[Any, Any]",
    fraction: float,
    random: np.random.Generator,
) -> "np.ndarray[Any, Any]":
    """Which rows are drawn: whole groups of equal rows, as many rows of each stratum as wanted."""
    drawn = np.zeros(len(first), dtype=bool)
    groups, group_of, sizes = np.unique(first, return_inverse=True, return_counts=True)
    group_strata = strata[groups]
    wanted = _shares(np.bincount(strata), fraction)
    for stratum, rows in enumerate(wanted):
        members = random.permutation(np.flatnonzero(group_strata == stratum))
        fits = np.cumsum(sizes[members]) <= rows
        chosen = members[fits]
        left = rows - sizes[chosen].sum()
        for group in members[~fits]:  # groups too large are passed over for smaller ones
            if left == 0:
                break
            if sizes[group] <= left:
                chosen = np.append(chosen, group)
                left -= sizes[group]
        drawn |= np.isin(group_of, chosen)
    return drawn


def _shares(sizes: "np.ndarray[Any, Any]", fraction: float) -> "np.ndarray[Any, Any]":
    """Rows to draw of each stratum: in all the fraction, rounded, by largest remainder."""
    total = min(max(round(float(sizes.sum() * fraction)), 1), int(sizes.sum()) - 1)
    exact = sizes * (total / sizes.sum())
    shares = np.minimum(np.floor(exact).astype(int), np.maximum(sizes - 1, 0))
    for stratum in np.argsort(-(exact - shares), kind="stable"):
        if shares.sum() >= total:
            break
        if shares[stratum] < sizes[stratum] - 1:
            shares[stratum] += 1
    return np.asarray(shares)
