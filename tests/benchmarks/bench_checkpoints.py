"""(d) How long a checkpoint keeps the training thread, as a share of wall time.

Counted is the time in which the engine has a run write its state and waits for the disk: at the
ends of chunks, and apart from that at the end of a run, when the engine waits until all is durable.
"""

import threading
import time

import workload
from figures import arguments, median, show

from rapidfire_jupyter.executors.local import LocalExecutor

STALLING = ("save", "flush", "finish", "close")


def main():
    options = arguments(__doc__)
    for size, steps in (("tiny", 120),) if options.quick else (("tiny", 240), ("10M", 48)):
        rounds = options.rounds or (1 if options.quick else 2)
        work = workload.Work(size, 2, 3 * steps, 3)
        figures = stalls(work, rounds)
        show(f"checkpoints every {steps} steps, {size}, {rounds} rounds", figures, options.json)


def stalls(work, rounds):
    """Train with timers around what the engine asks of the executor for the disk's sake."""
    workload.sliced(workload.Work(work.size, 1, 8))
    saves, run_ends, slices, shares, all_shares = [], [], [], [], []
    for _ in range(rounds):
        with Timers() as timers:
            exp = workload.experiment(work)
            exp.wait()
        exp.end()
        seconds = [e.data["seconds"] for e in exp.events if e.kind == "slice_ended"]
        wall = max(e.time for e in exp.events) - exp.events[0].time
        at_chunks = sum(timers.took["save"])
        at_ends = sum(sum(took) for name, took in timers.took.items() if name != "save")
        saves += timers.took["save"]
        slices += seconds
        run_ends.append(at_ends / work.runs)
        shares.append(at_chunks / sum(seconds))
        all_shares.append((at_chunks + at_ends) / wall)
    return [
        median("    slice", slices, "s"),
        median("    stall at a chunk's end", [1e3 * s for s in saves], "ms"),
        median("(d) stalls at chunk ends / slices", [100 * s for s in shares], "%", 1.0),
        median("    stall at a run's end", [1e3 * s for s in run_ends], "ms"),
        median("    all stalls / wall time", [100 * s for s in all_shares], "%"),
    ]


class Timers:
    """Times the executor's methods that are for the disk's sake; an inner call is not counted."""

    def __enter__(self):
        self.took = {name: [] for name in STALLING}
        self._kept = {name: getattr(LocalExecutor, name) for name in STALLING}
        self._inside = threading.local()
        for name, method in self._kept.items():
            setattr(LocalExecutor, name, self._timed(name, method))
        return self

    def __exit__(self, *error):
        for name, method in self._kept.items():
            setattr(LocalExecutor, name, method)

    def _timed(self, name, method):
        def timed(executor, *args):
            if getattr(self._inside, "yes", False):
                return method(executor, *args)
            self._inside.yes, start = True, time.perf_counter()
            try:
                return method(executor, *args)
            finally:
                self._inside.yes = False
                self.took[name].append(time.perf_counter() - start)

        return timed


if __name__ == "__main__":
    main()
