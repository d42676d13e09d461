"""`load_data`: whatever a user has, as one data set, checked while it is read.

Files are read here rather than by `datasets`, whose JSON reader turns text into numbers in columns
of several types and takes bytes that are no UTF-8. `fsspec` finds and opens them, so that URLs work
as paths do. Data sets of the Hub are `datasets`' work; code of a data set is never run.
"""

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import PurePosixPath
from typing import IO, Any

import pyarrow as pa

from rapidfire_jupyter.data.columns import (
    by_datasets,
    dataset_of,
    holds,
    plain_columns,
    rows_table,
    table_of,
)
from rapidfire_jupyter.data.files import File
from rapidfire_jupyter.data.reading import json_blocks, text_blocks
from rapidfire_jupyter.data.tables import csv_table, parquet_table
from rapidfire_jupyter.errors import DataError

KINDS = {
    ".jsonl": "JSON",
    ".ndjson": "JSON",
    ".json": "JSON",
    ".csv": "CSV",
    ".tsv": "TSV",
    ".parquet": "Parquet",
    ".txt": "text",
}
PACKED = (".gz", ".bz2", ".xz")
_SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "eval": "validation",
    "evaluation": "validation",
    "test": "test",
    "testing": "test",
}
_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "http": "aiohttp requests",
    "https": "aiohttp requests",
    "sftp": "paramiko",
}  # that fsspec opens these URLs with
_OFFLINE = "HF_HUB_OFFLINE switches the Hub off; unset it, or give a path of this machine"
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def load_data(
    data: Any,
    split: str | None = None,
    *,
    field: str | None = None,
    encoding: str = "utf-8",
    delimiter: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **hub_options: Any,
) -> Any:
    """Load a data set from where it is. Any: see Args and Returns; their kinds share no type.

    Args:
        data: A path, a glob or a URL of JSON Lines, JSON, CSV, TSV, Parquet or text files, gzipped
            or not; a folder of them (names that start with . or _ are left out), or one that
            `datasets` saved; a list of paths; the name of a data set on the Hub; a
            datasets.Dataset, IterableDataset or DatasetDict; a list of dicts; a pandas DataFrame.
        split: Which part: a key of a DatasetDict, a split of the Hub's, or "train", "validation"
            or "test" of files that have the word in their name.
        field: Key under which a JSON file that is one object has its rows.
        encoding: Encoding of text files.
        delimiter: What parts the cells of a CSV file; a comma, or in .tsv files a tab, if not
            given.
        storage_options: For fsspec: credentials and the like of a URL's storage.
        hub_options: For `datasets.load_dataset`, for a name on the Hub only.

    Returns:
        A datasets.Dataset; an IterableDataset where one was given or asked for.

    Raises:
        DataError: Nothing is there, or what is there is broken or empty; the message names file,
            line and column.
    """
    from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict

    if isinstance(data, str | os.PathLike):
        loaded = _from_path(os.fspath(data), split, field, encoding, delimiter, storage_options)
        if loaded is None:
            loaded = _from_hub(os.fspath(data), split, hub_options)
        elif hub_options:
            raise DataError(
                f"load_data has no argument {next(iter(hub_options))!r} for files; those go to "
                "datasets.load_dataset for a name on the Hub"
            )
        return loaded
    if isinstance(data, DatasetDict | IterableDatasetDict):
        return _pick(data, split, "the DatasetDict")
    if isinstance(data, list) and data and all(isinstance(x, str | os.PathLike) for x in data):
        files = [f for x in data for f in _found(os.fspath(x), encoding, storage_options) or []]
        return _read(_of_split(files, split, "the list"), "the list", field, delimiter)
    if split is not None:
        raise DataError(
            f"split={split!r} needs a DatasetDict, files or a name on the Hub, got "
            f"{type(data).__name__}; leave split out"
        )
    if isinstance(data, Dataset | IterableDataset):
        return data
    return from_memory(data, "the data")


def from_memory(data: Any, what: str) -> Any:
    """The data set of a list of dicts or a DataFrame. Any: one of the two; a datasets.Dataset.

    Raises:
        DataError: It is neither, is empty, or holds text that is none.
    """
    import pandas as pd

    if isinstance(data, pd.DataFrame):
        table = _frame_table(data)
        if table is None:
            records: list[Any] = data.astype(object).where(data.notna(), None).to_dict("records")
            table = rows_table(records, what)
        dataset = dataset_of(table)
    elif isinstance(data, list) and data and all(isinstance(row, dict) for row in data):
        try:
            dataset = dataset_of(rows_table(data, what))
        except TypeError:
            dataset = by_datasets(data, what)
    else:
        raise DataError(
            f"{what} must be a datasets.Dataset, a list of dicts or a DataFrame, got "
            f"{type(data).__name__}" + (" without rows" if data == [] else "")
        )
    if len(dataset) == 0:
        raise DataError(f"{what} has no rows; give at least one")
    return dataset


def _frame_table(frame: Any) -> pa.Table | None:
    """A DataFrame as a table; None if a column of it has values of several types. Any: see name."""
    from datasets import Dataset

    try:
        table = plain_columns(Dataset.from_pandas(frame, preserve_index=False).data.table)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None
    for name, column in frame.items():
        if column.dtype == object and str(name) in table.column_names:
            kind = table.schema.field(str(name)).type
            if not holds(column[column.notna()].tolist(), kind):
                return None
    return table


def _from_path(
    path: str,
    split: str | None,
    field: str | None,
    encoding: str,
    delimiter: str | None,
    storage_options: Mapping[str, Any] | None,
) -> Any:
    """The data set at a path or URL; None if nothing is there and the path may be a Hub name."""
    saved = None if _kind(path) else _saved(path, storage_options)
    if saved is not None:
        return saved if not isinstance(saved, dict) else _pick(saved, split, path)
    files = _found(path, encoding, storage_options)
    if files is None:
        return None
    return _read(_of_split(files, split, path), path, field, delimiter)


def _saved(path: str, storage_options: Mapping[str, Any] | None) -> Any:
    """What `save_to_disk` wrote into a folder; None if the folder is not of that kind."""
    from datasets import load_from_disk
    from fsspec.core import url_to_fs  # type: ignore[import-untyped]

    try:
        fs, root = url_to_fs(path, **(storage_options or {}))
        names = ("dataset_dict.json", "state.json")
        if not fs.isdir(root) or not any(fs.isfile(f"{root.rstrip('/')}/{name}") for name in names):
            return None
    except Exception:  # told by who looks for files there
        return None
    return load_from_disk(path, storage_options=dict(storage_options or {}) or None)


def _found(
    path: str, encoding: str, storage_options: Mapping[str, Any] | None
) -> list[File] | None:
    """The files a path, glob or folder stands for; None if there are none and it may be a name."""
    from fsspec.core import url_to_fs
    from huggingface_hub import is_offline_mode

    try:
        fs, root = url_to_fs(path, **(storage_options or {}))
        listed = _listed(fs, root)
    except ImportError as error:
        package = _PACKAGES.get(path.partition("://")[0], f"... ({error})")
        raise DataError(
            f"{path} needs a package that is not installed: pip install {package}"
        ) from error
    except Exception as error:  # what a storage's client may raise
        raise DataError(f"{path} cannot be opened: {error}; check the path") from error
    if listed is None and path.startswith("hf://") and is_offline_mode():
        raise DataError(f"{path} cannot be looked for: {_OFFLINE}")
    if listed is None:
        if _HUB_NAME.fullmatch(path) and _kind(path) is None and not path.startswith("."):
            return None
        raise DataError(f"there is no file or folder {path}; check the path")
    local = "://" not in path
    files = []
    for name in listed:
        shown = os.path.relpath(name) if local and not os.path.isabs(path) else name
        files.append(File(shown, _opener(fs, name), encoding))
    if not files:
        raise DataError(f"{path} holds no {', '.join(KINDS)} file; give a file or another folder")
    return files


def _listed(fs: Any, root: str) -> list[str] | None:  # Any: a file system of fsspec
    """Names of the files at `root`, sorted; None if there is nothing."""
    if fs.isfile(root):
        return [root]
    if fs.isdir(root):
        names = fs.find(root)
        inside = {name: name.removeprefix(root.rstrip("/") + "/") for name in names}
        return sorted(n for n in names if _kind(n) and not _hidden(inside[n]))
    if any(mark in root for mark in "*?["):
        return sorted(n for n in fs.glob(root) if fs.isfile(n)) or None
    return None


def _hidden(inside: str) -> bool:
    return any(part.startswith((".", "_")) for part in PurePosixPath(inside).parts)


def _opener(fs: Any, name: str) -> Callable[[], IO[bytes]]:  # Any: a file system of fsspec
    return partial(fs.open, name, "rb", compression="infer")


def _kind(name: str) -> str | None:
    """What a file's ending says it holds; None if it says nothing that is known."""
    lower = name.lower()
    for ending in PACKED:
        lower = lower.removesuffix(ending)
    return KINDS.get(PurePosixPath(lower).suffix)


def _split_of(name: str) -> str | None:
    """The split that a file's name, or its folder's, tells."""
    path = PurePosixPath(name.replace(os.sep, "/"))
    for part in (path.name, path.parent.name):
        for word in re.split(r"[^a-z]+", part.lower()):
            if word in _SPLIT_WORDS:
                return _SPLIT_WORDS[word]
    return None


def _of_split(files: list[File], split: str | None, what: str) -> list[File]:
    """Those of some files that are of a split, by their names."""
    by_split: dict[str, list[File]] = {}
    for file in files:
        by_split.setdefault(_split_of(file.name) or "train", []).append(file)
    if len(files) == 1 and split is None:
        return files
    if split is None:
        if len(by_split) > 1:
            raise DataError(
                f"{what} holds the splits {', '.join(sorted(by_split))}; give one of them, for "
                f"example split={min(by_split)!r}"
            )
        return files
    wanted = _SPLIT_WORDS.get(split, split)
    if wanted not in by_split:
        raise DataError(
            f"{what} has no split {split!r} by the names of its files, only "
            f"{', '.join(sorted(by_split))}; give one of those"
        )
    return by_split[wanted]


def _read(files: list[File], what: str, field: str | None, delimiter: str | None) -> Any:
    """One data set of files of one kind."""
    kinds = {file.name: _kind(file.name) for file in files}
    unknown = [name for name, kind in kinds.items() if kind is None]
    if unknown:
        raise DataError(
            f"{unknown[0]}: files of this ending are not read; allowed are {', '.join(KINDS)}, "
            f"each with or without {', '.join(PACKED)}"
        )
    if len(set(kinds.values())) > 1:
        found = ", ".join(sorted(set(map(str, kinds.values()))))
        raise DataError(
            f"{what} holds files of several kinds ({found}); give a glob such as '*.jsonl'"
        )
    kind = next(iter(kinds.values()))
    if kind == "JSON":
        table = table_of(block for file in files for block in json_blocks(file, field))
    elif kind == "text":
        table = table_of(block for file in files for block in text_blocks(file))
    elif kind == "Parquet":
        table = _stacked([(file, parquet_table(file)) for file in files])
    else:
        by_default = "\t" if kind == "TSV" else ","
        table = _stacked([(file, csv_table(file, delimiter or by_default)) for file in files])
    if table.num_rows == 0:
        names = files[0].name if len(files) == 1 else what
        header = f" but the header {', '.join(table.column_names)}" if table.column_names else ""
        raise DataError(f"{names} is empty: it holds no rows{header}; give at least one row")
    return dataset_of(table)


def _stacked(tables: list[tuple[File, pa.Table]]) -> pa.Table:
    """Tables under each other; a column that one lacks is null there."""
    first_file, first = tables[0]
    for file, table in tables[1:]:
        for field in table.schema:
            number = first.schema.get_field_index(field.name)
            if number >= 0 and first.schema.field(number).type != field.type:
                raise DataError(
                    f"{file.name}: column {field.name!r} is {field.type}, but in "
                    f"{first_file.name} it is {first.schema.field(number).type}; write both alike"
                )
    return pa.concat_tables([table for _, table in tables], promote_options="default")


def _pick(splits: Mapping[str, Any], split: str | None, what: str) -> Any:
    """One split of several."""
    if split is None and len(splits) == 1:
        return next(iter(splits.values()))
    if split is None or split not in splits:
        asked = "" if split is None else f", not {split!r}"
        raise DataError(
            f"{what} has the splits {', '.join(splits)}{asked}; give one of them, for example "
            f"split={next(iter(splits), 'train')!r}"
        )
    return splits[split]


def _from_hub(name: str, split: str | None, options: Mapping[str, Any]) -> Any:
    """A data set of the Hub, loaded by datasets."""
    from datasets import load_dataset
    from huggingface_hub import is_offline_mode

    try:
        loaded = load_dataset(name, split=split, **options)
    except Exception as error:  # what the Hub, its client and a data set's files may raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        fix = _OFFLINE if is_offline_mode() else "check the name, or the path"
        raise DataError(
            f"{name!r} is no file or folder here, and the Hub did not give a data set of that "
            f"name: {reason}; {fix}"
        ) from error
    return _pick(loaded, split, name) if isinstance(loaded, dict) else loaded
