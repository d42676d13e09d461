"""(e) How long a million short rows take until a fit could begin, and how much memory.

Each measurement is a fresh process on two cores: `load_data`, `check_data` without a tokenizer, the
plan's order of the first epoch, and the balance of its chunks. Beside wall time stands the time of
the processor, which neighbours on the machine do not change. Memory is what the process had at
most; and that less what it had with everything imported, over the Arrow memory of the rows.
"""

import json
import multiprocessing
import os
import resource
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from figures import arguments, median, show

MICROSECONDS = 20  # a row, all together: 50,000 rows/s
STAGES = ("load", "check", "plan", "balance")
CHUNKS = 8
KINDS = ("jsonl", "csv", "parquet", "messages.jsonl")


def main():
    options = arguments(__doc__)
    rows = 20_000 if options.quick else 1_000_000
    rounds = options.rounds or (1 if options.quick else 2)
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            path = Path(folder) / f"rows.{kind}"
            _alone(write, path, rows)
            measured = [_alone(measure, path, rows) for _ in range(rounds)]
            walls, cpus, most, more, arrow = zip(*measured, strict=True)
            figures = [
                median(f"    {stage}", [1e6 * wall[n] / rows for wall in walls], "µs/row", None,
                       f"{1e6 * min(cpu[n] for cpu in cpus) / rows:.3g} of the processor")
                for n, stage in enumerate(STAGES)
            ] + [
                median("(e) all of it", [1e6 * sum(wall) / rows for wall in walls], "µs/row",
                       MICROSECONDS, f"{rows * rounds / sum(map(sum, walls)):,.0f} rows/s"),
                median("    of the processor", [1e6 * sum(cpu) / rows for cpu in cpus], "µs/row",
                       MICROSECONDS),
                median("    most memory", [size / 2**20 for size in most], "MiB"),
                median("    what rows took / Arrow's", [a / b for a, b in
                       zip(more, arrow, strict=True)], "x", None,
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


def measure(path, rows):
    """Seconds of each stage by the wall and of the processor, most memory, and what rows took."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    from rapidfire_jupyter.data import balance
    from rapidfire_jupyter.data.check import check_data
    from rapidfire_jupyter.data.load import load_data
    from rapidfire_jupyter.data.plan import make_plan

    small = load_data([{"prompt": f"p {n}", "completion": "c"} for n in range(8)])
    check_data(small)  # imports what is needed
    balance.measure(small, make_plan(8, 42, 2, None))
    before = _most_memory()
    times = [(time.perf_counter(), time.process_time())]

    def note():
        times.append((time.perf_counter(), time.process_time()))

    data = load_data(path)
    note()
    report = check_data(data)
    note()
    plan = make_plan(len(data), 42, CHUNKS, None)
    assert len(plan.order(0)) == rows
    note()
    found = balance.measure(data, plan)
    note()
    assert report.parts[0].rows == found.rows == rows
    assert report.findings[:1] == () or report.findings[0].kind == "few_rows"
    walls, cpus = ([b - a for a, b in pairwise(column)] for column in zip(*times, strict=True))
    return walls, cpus, _most_memory(), _most_memory() - before, data.data.nbytes


def _most_memory():
    unit = 1 if os.uname().sysname == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    main()
