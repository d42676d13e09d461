"""(b) What it costs to pass the baton, against rebuilding a trainer for each slice.

Three runs in slices of 8 steps. The hand-over is the time in which no run's thread trains: from
when one begins to put its random streams away until the next has its own in force, with the
engine's events and choice in between. Once more, wall time in such slices against whole runs.
"""

import tempfile
import threading
import time
from itertools import pairwise

import workload
from figures import Figure, arguments, median, ratio, show
from transformers import TrainerCallback

from rapidfire_jupyter.training.context import RunContext

SLICE_STEPS = 8


def main():
    options = arguments(__doc__)
    for size in ("tiny",) if options.quick else ("tiny", "10M"):
        rounds = options.rounds or (2 if options.quick else 5)
        work = workload.Work(size, 3, 4 * SLICE_STEPS)
        figures = [*hand_overs(work, rounds), *rebuilding(size, rounds)]
        costs = [f.value for f in figures if f.unit == "ms"]
        figures.append(Figure("rebuilding / hand-over", *[costs[1] / costs[0]] * 3, "x"))
        show(
            f"hand-overs every {SLICE_STEPS} steps, {size}, {rounds} rounds", figures, options.json
        )


def hand_overs(work, rounds):
    """Time each hand-over, and compare wall times of sliced and whole runs, interleaved."""
    workload.sliced(work)
    gaps, shares, walls = [], [], {"sliced": [], "whole": []}
    for number in range(rounds):
        for side in ("sliced", "whole") if number % 2 == 0 else ("whole", "sliced"):
            steps = SLICE_STEPS if side == "sliced" else None
            with Batons() as batons:
                exp = workload.experiment(work, slice_steps=steps)
                exp.wait()
            if side == "sliced":
                found, share = between_slices(batons.times, exp.events, work.steps)
                gaps += found
                shares.append(share)
            walls[side].append(trained_seconds(exp.events))
            exp.end()
    return [
        median("(b) hand-over", [gap * 1e3 for gap in gaps], "ms", 2.0, f"{len(gaps)} hand-overs"),
        median("    share of wall time", [share * 100 for share in shares], "%", 0.5),
        ratio("    wall time, sliced / whole runs", walls["sliced"], walls["whole"], 1.005),
    ]


class Batons:
    """Notes when a run's thread puts its streams in force, and when it begins to put them away."""

    def __enter__(self):
        self.times = []  # (seconds, thread, whether it enters)
        self._kept = RunContext.enter, RunContext.leave
        enter, leave = self._kept

        def noted_enter(context):
            enter(context)
            self.times.append((time.time(), threading.get_ident(), True))

        def noted_leave(context):
            self.times.append((time.time(), threading.get_ident(), False))
            leave(context)

        RunContext.enter, RunContext.leave = noted_enter, noted_leave
        return self

    def __exit__(self, *error):
        RunContext.enter, RunContext.leave = self._kept


def between_slices(times, events, last_step):
    """Hand-overs from run to run while all runs train, in seconds, and their share of that time."""
    slices = [e for e in events if e.kind in ("slice_started", "slice_ended")]
    begin = slices[0].time
    end = next(
        (e.time for e in slices if e.kind == "slice_started" and e.data["step"] > 0
         and e.data["step"] + SLICE_STEPS >= last_step), slices[-1].time,
    )  # fmt: skip
    inside = [t for t in times if begin <= t[0] <= end]
    gaps = [b[0] - a[0] for a, b in pairwise(inside) if not a[2] and b[2] and a[1] != b[1]]
    return gaps, sum(gaps) / (end - begin)


def trained_seconds(events):
    """From the first slice to the last run's completion: training without building."""
    first = next(e.time for e in events if e.kind == "slice_started")
    return max(e.time for e in events if e.kind == "run_completed") - first


def rebuilding(size, rounds):
    """Build a trainer and resume it up to its first step; base loaded and rows tokenised before."""
    work = workload.Work(size, 1, 4 * SLICE_STEPS)
    with tempfile.TemporaryDirectory() as folder:
        stop = StopAtStep(1)
        first = workload.plain_trainer(work, 1e-3, [stop], output_dir=folder, save_steps=1)
        first.train()
        rows, took = first.train_dataset, []
        for _ in range(rounds + 1):
            base, stop = work.load(), StopAtStep(None)
            start = time.perf_counter()
            trainer = workload.plain_trainer(work, 1e-3, [stop], base, rows, output_dir=folder)
            trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-1")
            took.append(stop.began - start)
    return [median("    rebuilding a trainer", [1e3 * t for t in took[1:]], "ms")]


class StopAtStep(TrainerCallback):
    """Ends a training after a step, or (None) as its first step begins; notes when that was."""

    def __init__(self, step):
        self.step, self.began = step, 0.0

    def on_step_begin(self, args, state, control, **kwargs):
        self.began = self.began or time.perf_counter()
        control.should_training_stop = self.step is None

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = self.step is None or state.global_step >= self.step


if __name__ == "__main__":
    main()
