"""(e) How long a million short rows take to be loaded and checked, and how much memory.

Each measurement is a fresh process on two cores. Seconds are those of `load_data` and `check_data`
without a tokenizer; memory is what the process had at most, less what it had with everything
imported, over the Arrow memory of the rows.
"""

import json
import multiprocessing
import os
import resource
import tempfile
import time
from pathlib import Path

from figures import arguments, median, show

MICROSECONDS = 20  # a row, both together: 50,000 rows/s
KINDS = ("jsonl", "csv", "parquet", "messages.jsonl")


def main():
    options = arguments(__doc__)
    rows = 20_000 if options.quick else 1_000_000
    rounds = options.rounds or (1 if options.quick else 2)
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            path = Path(folder) / f"rows.{kind}"
            _alone(write, path, rows)
            measured = [_alone(load_and_check, path, rows) for _ in range(rounds)]
            loading, checking, memory, arrow = zip(*measured, strict=True)
            both = [a + b for a, b in zip(loading, checking, strict=True)]
            note = f"{rows / (sum(both) / rounds):,.0f} rows/s"
            figures = [
                median("    load", [1e6 * s / rows for s in loading], "µs/row"),
                median("    check", [1e6 * s / rows for s in checking], "µs/row"),
                median("(e) load and check", [1e6 * s / rows for s in both], "µs/row",
                       MICROSECONDS, note),
                median("    most memory / Arrow's", [a / b for a, b in
                       zip(memory, arrow, strict=True)], "x", None,
                       f"{arrow[0] / 2**20:.0f} MiB of rows"),
            ]  # fmt: skip
            show(f"{rows:,} rows of {kind}, {rounds} rounds", figures, options.json)


def _alone(function, *args):
    """Call a function in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args)


def write(path, rows):
    """Write short questions and answers, all different."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    pairs = (
        (f"Where is order {n}, please?", f" It is in warehouse {n % 977}.") for n in range(rows)
    )
    if path.suffixes[0] == ".messages":
        roles = ("user", "assistant")
        lines = (
            {"messages": [{"role": r, "content": t} for r, t in zip(roles, pair, strict=True)]}
            for pair in pairs
        )
    else:
        lines = ({"prompt": prompt, "completion": completion} for prompt, completion in pairs)
    if path.suffix == ".jsonl":
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        return
    table = pa.Table.from_pylist(list(lines))
    (csv.write_csv if path.suffix == ".csv" else parquet.write_table)(table, str(path))


def load_and_check(path, rows):
    """Seconds of loading and of checking, bytes of memory at most and of the rows in Arrow."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    from rapidfire_jupyter.data.check import check_data
    from rapidfire_jupyter.data.load import load_data

    check_data(load_data([{"prompt": "p", "completion": "c"}]))  # imports what is needed
    before = _most_memory()
    start = time.perf_counter()
    data = load_data(path)
    loaded = time.perf_counter()
    report = check_data(data)
    end = time.perf_counter()
    assert report.parts[0].rows == rows
    assert report.findings[:1] == () or report.findings[0].kind == "few_rows"
    return loaded - start, end - loaded, _most_memory() - before, data.data.nbytes


def _most_memory():
    unit = 1 if os.uname().sysname == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    main()
