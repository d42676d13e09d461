"""The user's data sets: what is accepted, and a fingerprint that tells whether they changed."""

import hashlib
from typing import Any

from rapidfire_jupyter.errors import DataError


def as_dataset(data: Any, what: str) -> Any:
    """Take a data set as run_fit accepts it. Any: the accepted kinds share no type.

    Args:
        data: A datasets.Dataset or IterableDataset, a list of dicts, or a pandas DataFrame.
        what: "train_dataset" or "eval_dataset", for messages.

    Raises:
        DataError: It is something else, or has no rows.
    """
    import pandas as pd
    from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict

    from rapidfire_jupyter.data.load import from_memory

    if isinstance(data, DatasetDict | IterableDatasetDict):
        raise DataError(
            f"{what} is a DatasetDict with the splits {', '.join(data)}; give one of them, for "
            f"example {what}=data[{next(iter(data), 'train')!r}]"
        )
    rows = isinstance(data, list) and data and all(isinstance(row, dict) for row in data)
    if rows or (isinstance(data, pd.DataFrame) and len(data)):
        data = from_memory(data, what)
    if isinstance(data, IterableDataset):
        return data
    if not isinstance(data, Dataset | pd.DataFrame):
        raise DataError(
            f"{what} must be a datasets.Dataset, a list of dicts or a DataFrame, "
            f"got {type(data).__name__}"
            + (" without rows" if isinstance(data, list) and not data else "")
            + ("; several tasks are given as mix({...})" if isinstance(data, dict) else "")
        )
    if len(data) == 0:
        raise DataError(f"{what} has no rows; give at least one" + _or_none(what))
    return data


def fingerprint(data: Any) -> str:
    """A digest of a data set's rows and columns, the same in every process.

    A stream gives "stream", no data set an empty text. Any: a data set, as from `as_dataset`.
    """
    import pyarrow as pa
    from datasets import Dataset

    if data is None:
        return ""
    if not isinstance(data, Dataset):
        return "stream"
    total = hashlib.sha256()
    sink = _HashSink(total)
    table_format = data.with_format("arrow")
    writer = None
    for batch in table_format.iter(batch_size=1000):
        if writer is None:
            writer = pa.ipc.new_stream(sink, batch.schema.remove_metadata())
        writer.write_table(batch.replace_schema_metadata(None).combine_chunks())
    if writer is not None:
        writer.close()
    return total.hexdigest()[:16]


class _HashSink:
    """A file that only digests what is written to it."""

    closed = False

    def __init__(self, total: Any) -> None:  # Any: a hashlib object
        self._total = total

    def write(self, data: Any) -> int:  # Any: bytes or a pyarrow buffer
        self._total.update(memoryview(data))
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return 0


def _or_none(what: str) -> str:
    return ", or leave it out" if what == "eval_dataset" else ""
