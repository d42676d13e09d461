"""Answers of runs at chunk ends, kept on disk: one file a run and step, one JSON line an answer.

    runs/<id>/samples/step-<step>.jsonl

A file is there whole or not at all; which there are is said by the log's rows from source
"generation". A run keeps its newest 100, and that of step 0.
"""

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rapidfire_jupyter import folders, storage
from rapidfire_jupyter.events import Event
from rapidfire_jupyter.state import State, observed_steps

KEPT = 100
_NAME = re.compile(r"step-(\d+)\.jsonl")
Sample = dict[str, Any]  # Any: row (int), prompt, references, prediction, scores by metric


def path(run_dir: Path, step: int) -> Path:
    """Where a run's answers of a step are."""
    return run_dir / "samples" / f"step-{step}.jsonl"


def write(run_dir: Path, step: int, samples: Sequence[Sample]) -> None:
    """Keep a run's answers of a step, and let go of old ones.

    Raises:
        OSError: The disk refused it.
    """
    file = path(run_dir, step)
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(one, ensure_ascii=True, allow_nan=False) + "\n" for one in samples)
    storage.write_text(file, "".join(lines))
    for old in sorted(steps(run_dir))[1:-KEPT]:
        path(run_dir, old).unlink(missing_ok=True)


def read(run_dir: Path, step: int) -> list[Sample]:
    """A run's answers of a step; none if they were not kept."""
    file = path(run_dir, step)
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def steps(run_dir: Path) -> list[int]:
    """Steps of which a run's answers are kept."""
    files = (run_dir / "samples").glob("step-*.jsonl")
    return [int(found[1]) for file in files if (found := _NAME.fullmatch(file.name))]


@dataclass
class Asked:
    """One prompt of the eval set with what runs answered; scores by run and metric."""

    row: int
    prompt: str
    references: tuple[str, ...]
    task: str = ""
    predictions: dict[int, str] = field(default_factory=dict)
    scores: dict[int, dict[str, float]] = field(default_factory=dict)


def chunks(events: Iterable[Event], state: State) -> dict[int, dict[int, int]]:
    """By run and chunk number, the step of its answers; 0 is before training."""
    listed = list(events)
    return {
        run.id: {
            bisect_right(run.chunk_ends, step): step
            for step in sorted(observed_steps(listed, run.id, "generation"))
        }
        for run in state.runs.values()
        if run.status != "deleted"
    }


def shared(known: Mapping[int, Mapping[int, int]], runs: Iterable[int] | None = None) -> int:
    """The newest chunk that over half of the runs have answered after; else that of the most.

    Args:
        known: As `chunks` gives it.
        runs: Which ones are looked at; None, or none that answered, for all.
    """
    wanted = set(runs or known)
    asked = [steps for run, steps in known.items() if run in wanted and steps]
    asked = asked or [steps for steps in known.values() if steps]
    counts = Counter(number for steps in asked for number in steps)
    usual = [number for number, count in counts.items() if 2 * count > len(asked)]
    most = max(counts.values(), default=0)
    return max(usual or [n for n, count in counts.items() if count == most], default=0)


def gather(
    folder: Path, known: dict[int, dict[int, int]], chunk: int, runs: Iterable[int] | None = None
) -> list[Asked]:
    """What was asked after a chunk, and what each run answered.

    Args:
        folder: The experiment's.
        known: As `chunks` gives it.
        chunk: Its number; 0 is before training, -1 each run's newest, -2 the one before it, ...
        runs: Runs to look at; None for all.
    """
    asked: dict[int, Asked] = {}
    for run, steps in known.items():
        numbers = sorted(steps)
        if runs is not None and run not in runs:
            continue
        newest = numbers[chunk] if -len(numbers) <= chunk < 0 else -1
        chosen = newest if chunk < 0 else chunk
        if chosen not in steps:
            continue
        for one in read(folders.run_dir(folder, run), steps[chosen]):
            references = tuple(one["references"])
            new = Asked(one["row"], one["prompt"], references, one.get("task", ""))
            row = asked.setdefault(one["row"], new)
            row.predictions[run], row.scores[run] = one["prediction"], one["scores"]
    return [asked[row] for row in sorted(asked)]
