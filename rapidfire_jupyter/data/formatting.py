"""A user's formatting_func: what it gives wins over every layout."""

from collections.abc import Callable, Mapping
from typing import Any

from rapidfire_jupyter.errors import DataError

BATCH = 1000
_PROBE = 5  # rows of the batch that tells what a function is written for


def format_rows(dataset: Any, function: Callable[[Any], Any], what: str, keep: bool = False) -> Any:
    """Call a formatting function on each row; one that gives a list, on batches of rows.

    Args:
        dataset: A datasets.Dataset. Any: and what the function takes and gives.
        function: Gives, for a row, its text or a dict of columns. Or, for a batch (a dict of
            lists), a list of texts or a dict of lists, one for each row.
        what: How messages call the data.
        keep: Whether the columns that are there stay.

    Returns:
        The data set of the columns it gave; a text is the column `text`.

    Raises:
        DataError: It raises, or gives something else; the message has the row.
    """
    batched = _takes_batches(function, dataset[0])
    drop = None if keep else dataset.column_names

    def one(row: Mapping[str, Any], number: int) -> dict[str, Any]:
        return _columns(_called(function, dict(row), f"{what}, row {number + 1}"), what, number)

    def many(batch: Mapping[str, Any], numbers: list[int]) -> dict[str, list[Any]]:
        where = f"{what}, rows {numbers[0] + 1} to {numbers[-1] + 1}"
        return _batch_columns(_called(function, dict(batch), where), len(numbers), where)

    return dataset.map(
        many if batched else one,
        with_indices=True,
        batched=batched,
        batch_size=BATCH,
        remove_columns=drop,
        load_from_cache_file=False,
    )


def _takes_batches(function: Callable[[Any], Any], row: Mapping[str, Any]) -> bool:
    """Whether a function is written for batches: of equal rows it then makes equal values.

    One that only picks columns gives the same either way.
    """
    try:
        made = function({name: [value] * _PROBE for name, value in row.items()})
    except Exception:  # written for rows: lists in place of values are too much for it
        return False
    columns = list(made.values()) if isinstance(made, Mapping) else [made]
    return bool(columns) and all(
        isinstance(column, list) and len(column) == _PROBE and column == [column[0]] * _PROBE
        for column in columns
    )


def _called(function: Callable[[Any], Any], given: dict[str, Any], where: str) -> Any:
    try:
        return function(given)
    except Exception as error:
        raise DataError(f"formatting_func failed on {where}: {error!r}") from error


def _columns(made: Any, what: str, number: int) -> dict[str, Any]:
    if isinstance(made, str):
        return {"text": made}
    if isinstance(made, Mapping) and made:
        return dict(made)
    raise DataError(
        f"formatting_func must give a text or a dict of columns for each row, got "
        f"{_named(made)} on {what}, row {number + 1}"
    )


def _batch_columns(made: Any, rows: int, where: str) -> dict[str, list[Any]]:
    columns = {"text": made} if isinstance(made, list) else made
    if isinstance(columns, Mapping) and columns:
        lengths = {name: len(v) if isinstance(v, list) else None for name, v in columns.items()}
        if all(length == rows for length in lengths.values()):
            if isinstance(made, list) and not all(isinstance(text, str) for text in made):
                odd = next(text for text in made if not isinstance(text, str))
                raise DataError(
                    f"formatting_func must give a list of texts for a batch, got {_named(odd)} in "
                    f"it on {where}"
                )
            return dict(columns)
        name, length = next((n, k) for n, k in lengths.items() if k != rows)
        raise DataError(
            f"formatting_func must give {rows} values for a batch of {rows} rows, got "
            f"{'no list' if length is None else length} for {name!r} on {where}"
        )
    raise DataError(
        "formatting_func must give a list of texts or a dict of lists for a batch, got "
        f"{_named(made)} on {where}"
    )


def _named(value: object) -> str:
    return "None" if value is None else type(value).__name__
