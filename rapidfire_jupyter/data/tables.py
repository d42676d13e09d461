"""CSV, TSV and Parquet files as Arrow tables. In a CSV file every cell is text, byte for byte."""

import csv
import io

import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from rapidfire_jupyter.data.columns import plain_columns
from rapidfire_jupyter.data.files import File, opened, refuse_bad_bytes
from rapidfire_jupyter.errors import DataError

_OTHER_DELIMITERS = ";\t|,"
_HEADER_BYTES = 1 << 16


def csv_table(file: File, delimiter: str) -> pa.Table:
    """Read a CSV file with a header line; an empty cell is an empty text.

    Raises:
        DataError: It has no header, a name twice, a row with more or fewer cells, or bytes that are
            no UTF-8.
    """
    names = _header(file, delimiter)
    if not names:
        return pa.table({})
    wrong: list[arrow_csv.InvalidRow] = []

    def note(row: arrow_csv.InvalidRow) -> str:
        wrong.append(row)
        return "error"

    try:
        with opened(file) as stream:
            return arrow_csv.read_csv(
                stream,
                arrow_csv.ReadOptions(use_threads=False, block_size=4 << 20),
                arrow_csv.ParseOptions(
                    delimiter=delimiter, newlines_in_values=True, invalid_row_handler=note
                ),
                arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    strings_can_be_null=False,
                    quoted_strings_can_be_null=False,
                ),
            )
    except pa.ArrowInvalid as error:
        refuse_bad_bytes(file)
        if wrong:
            _refuse_row(file, delimiter, names, wrong[0].actual_columns)
        raise DataError(f"{file.name} is no valid CSV: {error}; check its quotes") from error


def parquet_table(file: File) -> pa.Table:
    """Read a Parquet file, without pandas' index columns.

    Raises:
        DataError: It is no Parquet file, or cut off.
    """
    with opened_raw(file) as stream:
        try:
            table = parquet.read_table(stream)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(
                f"{file.name} is no whole Parquet file: {error}; copy or write it again"
            ) from error
    return plain_columns(table)


def opened_raw(file: File) -> io.IOBase:
    """A file's bytes as they are.

    Raises:
        DataError: It cannot be opened.
    """
    try:
        return file.open()  # type: ignore[return-value]
    except OSError as error:
        raise DataError(f"{file.name} cannot be read: {error}; check the file") from error


def _header(file: File, delimiter: str) -> list[str]:
    """The column names of a CSV file."""
    with opened(file) as stream:
        start = stream.read(_HEADER_BYTES)
    try:
        text = start.decode()
    except UnicodeDecodeError:
        refuse_bad_bytes(file)
        text = start.decode(errors="ignore")  # the cut fell inside a character
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    names = next((line for line in lines if line), [])
    for other in _OTHER_DELIMITERS:
        if len(names) == 1 and other != delimiter and other in names[0]:
            raise DataError(
                f"{file.name}, line 1: one column {names[0]!r}; if its columns are parted by "
                f"{other!r}, give delimiter={other!r}"
            )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(
            f"{file.name}, line 1: the column {twice[0]!r} is there more than once; rename one"
        )
    return names


def _refuse_row(file: File, delimiter: str, names: list[str], cells: int) -> None:
    """Name the line of the first row with that many cells."""
    with opened(file) as stream:
        text = stream.read().decode()
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    before = 0
    for row in lines:
        if row and len(row) == cells:
            raise DataError(
                f"{file.name}, line {before + 1}: {cells} cell{'' if cells == 1 else 's'}, but the "
                f"header has {len(names)} columns ({', '.join(names)}); put quotes around text "
                f"that holds {delimiter!r}"
            )
        before = lines.line_num
