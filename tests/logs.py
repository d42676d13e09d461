"""Event logs made by hand, for tests of what is shown: no training, no torch."""

import random

from rapidfire_jupyter.events import EventLog

LENGTH = 600  # steps of each run


def started(path, runs=2, chunks=8, names=None):
    """A log of `runs` runs that are prepared and have not trained yet."""
    log = EventLog(path / "events.jsonl")
    specs = [
        {
            "id": i,
            "name": (names or {}).get(i, f"r={i}"),
            "trainer_type": "SFT",
            "config": {
                "model_name": "tiny",
                "peft_config.r": i,
                "training_args.learning_rate": i * 1e-4,
            },
        }
        for i in range(1, runs + 1)
    ]
    log.append("fit_started", fit={"train_rows": 4 * LENGTH}, runs=specs)
    for i in range(1, runs + 1):
        prepared(log, i, chunks)
    return log


def prepared(log, run, chunks=8, step=0):
    """A run is ready to train."""
    ends = [LENGTH * k // chunks for k in range(1, chunks + 1)]
    facts = {"total_steps": LENGTH, "steps_per_epoch": LENGTH, "chunk_ends": ends}
    log.append("run_prepared", run, **facts, base="base-1", step=step, notes=[], dropped=0)


def rows(log, run, count, first=1, seed=0, **fixed):
    """A run logs three metrics at each of some steps."""
    draw = random.Random(f"{run} {seed} {first}").random
    for step in range(first, first + count):
        row = {"loss": 3 / step + 0.1 * draw(), "grad_norm": draw(), "learning_rate": 1 / step}
        row = {"step": step, "epoch": step / LENGTH, **row, **fixed}
        log.append("logged", run, row=row, source="trainer")


def sliced(log, run, steps, seconds, first=0):
    """A run trains a slice; its rows are not logged."""
    log.append("slice_started", run, step=first)
    log.append("advanced", run, step=first + steps, chunks=steps / 75)
    log.append("slice_ended", run, step=first + steps, steps=steps, seconds=seconds)


def op(log, kind, run=None, outcome="applied", by="panel", reason="", **effect):
    """An op acted."""
    args = effect.pop("args", {})
    facts = {"kind": kind, "args": args, "by": by, "outcome": outcome, "reason": reason}
    log.append("op", run, **{"step": 0, **facts, **effect})
