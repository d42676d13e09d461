"""How much training it takes to find the best of 48 configurations, and how often that goes wrong.

Each grid (`grids.py`) is trained once to the end, and its curves are kept in a folder. Policies are
then replayed over them as in the engine: the real policies, state and scheduler, which see losses
of the training rows and of 64 eval rows (at most half of them) drawn for each replay; the truth is
the last loss on all eval rows. `tokens` is the share of the whole grid's, `regret` by how much the
loss of the best run that was left is over that of the best of all, `lost` in how many replays the
best was stopped, `wrong` which share of all stops hit a run that would have ended within 1 % of it.
Monitors look at the same curves; an alert is false if the run went on learning after it.

The time ratio is of_solo / of_budget: what training alone with plain TRL takes against the engine
for the same configurations, divided by the share of tokens that guarded halving needs.
"""

import argparse
import math
import statistics
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import grids
import workload
from replay import Replay

from rapidfire_jupyter import RFGridSearch, monitors
from rapidfire_jupyter.halving import Halving
from rapidfire_jupyter.scheduler import next_run
from rapidfire_jupyter.screening import Outliers, SlowLearners

ROOT = Path(__file__).parents[2]
CSV = "shared/data/bitext_customer_support.csv"
SEEN_ROWS = 64
CLOSE = 0.01  # relative distance to the best within which a stop counts as wrong


@dataclass
class Playback(Replay):
    """A replay in which runs learn as they did when their grid was trained."""

    curves: grids.Curves = None
    seen: list = field(default_factory=list)  # eval rows that the policy sees
    known: dict = field(default_factory=dict)  # their losses, by run and step

    @property
    def measures(self):
        return replace(super().measures, examples=self.known)

    def prepare(self, run, step=0):
        total = self.curves.totals[run.id - 1]
        self.rows[run.id], self.trained[run.id] = [], 0
        ends = [total * k // grids.CHUNKS for k in range(1, grids.CHUNKS + 1)]
        facts = {"total_steps": total, "chunk_ends": ends, "base": "", "step": step}
        self.emit("run_prepared", run.id, **facts)

    def train_chunk(self, run):
        known, chunk = self.state.runs[run], self.trained[run]
        first, end = known.step, known.chunk_ends[chunk]
        self.emit("slice_started", run, step=first)
        logged = self.curves.losses[run - 1]
        self.rows[run] += [row for row in logged if first < row["step"] <= end]
        examples = self.curves.examples[run - 1][chunk]
        losses = self.known[run, end] = [examples[i] for i in self.seen]
        self.rows[run].append({"step": end, "eval_loss": statistics.fmean(losses)})
        self.trained[run] += 1
        self.clock += 10.0
        self.emit("advanced", run, step=end, chunks=1)
        self.emit("slice_ended", run, step=end, steps=end - first, seconds=10.0)
        if end == known.total_steps:
            self.emit("run_completed", run, step=end)

    def run(self):
        """As in the engine, policies look whenever a slice has ended."""
        while True:
            run = next_run(self.state, self.state.runs)
            if run is None:
                return self
            self.train_chunk(run)
            if self.policies:
                self.decide()


@dataclass(frozen=True)
class Result:
    """What one replay came to; `order` and `kept` are of run ids."""

    tokens: float
    regret: float
    lost: bool
    stops: int
    wrong: int


def truth(curves):
    """The last loss of each run on all eval rows; what is not finite is the worst there is."""
    means = [statistics.fmean(run[-1]) for run in curves.examples]
    return [mean if math.isfinite(mean) else math.inf for mean in means]


def result(curves, trained, scores):
    """The outcome, from chunks trained by run and the last score that the policy saw by run.

    The run that is chosen is the best by what was seen of those trained to the end.
    """
    finals = truth(curves)
    best = min(finals)
    whole = [i for i, chunks in trained.items() if chunks == grids.CHUNKS]
    chosen = min(whole, key=lambda i: scores[i])
    stopped = [i for i, chunks in trained.items() if 0 < chunks < grids.CHUNKS]
    return Result(
        sum(trained.values()) / (len(finals) * grids.CHUNKS),
        finals[chosen] / best - 1,
        finals[chosen] > best and trained.get(finals.index(best), 0) < grids.CHUNKS,
        len(stopped),
        sum(finals[i] <= best * (1 + CLOSE) for i in stopped),
    )


# ------------------------------------------------------------------------------------- contenders


def ours(*policies):
    """Policies of the product, in its scheduler."""

    def play(curves, order, seen):
        shuffled = grids.Curves(
            curves.grid, curves.seed, *([part[i] for i in order] for part in
            (curves.configs, curves.totals, curves.losses, curves.examples)),
            curves.seconds, curves.steps,
        )  # fmt: skip
        replay = Playback(
            shuffled.configs, tuple(policies), chunks=grids.CHUNKS, curves=shuffled, seen=seen
        ).run()
        trained = {order[i - 1]: chunks for i, chunks in replay.trained.items()}
        scores = {order[i - 1]: rows[-1]["eval_loss"] for i, rows in replay.rows.items()}
        return result(curves, trained, scores)

    return play


def naive_halving(eta, first=1):
    """Successive halving by rank alone, from the first chunk on."""

    def play(curves, order, seen):
        seen_at = visible(curves, seen)
        trained, alive, rung = dict.fromkeys(order, 0), list(order), first
        while alive:
            trained.update(dict.fromkeys(alive, min(rung, grids.CHUNKS)))
            if rung >= grids.CHUNKS:
                break
            ranked = sorted(alive, key=lambda i: seen_at(i, rung))
            alive, rung = ranked[: max(1, len(alive) // eta)], rung * 2
        return result(curves, trained, {i: seen_at(i, trained[i]) for i in order})

    return play


def asha(eta):
    """Asynchronous halving that stops runs as they come, as Ray Tune does it on one device."""

    def play(curves, order, seen):
        seen_at = visible(curves, seen)
        rungs, trained = {1: [], 2: [], 4: []}, {}
        for run in order:
            for chunk in range(1, grids.CHUNKS + 1):
                trained[run] = chunk
                if chunk not in rungs:
                    continue
                recorded = rungs[chunk]
                recorded.append(seen_at(run, chunk))
                # Ray: below the (1 - 1/eta) quantile of the results at this rung, interpolated.
                if recorded[-1] > quantile(recorded, 1 / eta):
                    break
        return result(curves, trained, {i: seen_at(i, trained[i]) for i in order})

    return play


def median_pruner(startup=5):
    """Optuna's median rule, run by run: worse than the median of the runs before at this chunk."""

    def play(curves, order, seen):
        seen_at = visible(curves, seen)
        trained = {}
        for number, run in enumerate(order):
            best = math.inf
            for chunk in range(1, grids.CHUNKS + 1):
                trained[run] = chunk
                best = min(best, seen_at(run, chunk))
                before = [seen_at(i, chunk) for i in order[:number] if trained[i] >= chunk]
                if number >= startup and before and best > statistics.median(before):
                    break
        return result(curves, trained, {i: seen_at(i, trained[i]) for i in order})

    return play


def random_share(share):
    """A part of the configurations, trained to the end."""

    def play(curves, order, seen):
        seen_at = visible(curves, seen)
        taken = order[: round(share * len(order))]
        trained = dict.fromkeys(taken, grids.CHUNKS)
        return result(curves, trained, {i: seen_at(i, grids.CHUNKS) for i in taken})

    return play


def visible(curves, seen):
    """The eval loss that is seen of a run (from 0) at a chunk end (from 1)."""
    known = {}

    def at(run, chunk):
        if (run, chunk) not in known:
            examples = curves.examples[run][chunk - 1]
            mean = statistics.fmean(examples[i] for i in seen)
            known[run, chunk] = mean if math.isfinite(mean) else math.inf
        return known[run, chunk]

    return at


def quantile(values, share):
    """Linear interpolation, as numpy's percentile."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


CONTENDERS = {
    "guarded halving (default)": ours(Halving()),
    "guarded halving, ties x1.25": ours(Halving(most_kept=1.25)),
    "guarded halving, no ties": ours(Halving(most_kept=1.0)),
    "guarded halving, first cut 1/3": ours(Halving(first_keep=1 / 3)),
    "guarded halving, first cut 1/4, no ties": ours(Halving(first_keep=1 / 4, most_kept=1.0)),
    "guarded halving, eta 2": ours(Halving(eta=2)),
    "mean + 2 sigma": ours(Outliers()),
    "worst 20 % by improvement": ours(SlowLearners()),
    "naive halving, eta 2": naive_halving(2),
    "naive halving, eta 4": naive_halving(4),
    "ASHA in arrival order, eta 4": asha(4),
    "ASHA in arrival order, eta 2": asha(2),
    "median pruner": median_pruner(),
    "random quarter of the grid": random_share(0.25),
    "all": random_share(1.0),
}


def compare(all_curves, replays, contenders):
    """Replay each contender; gives its results by name.

    Args:
        all_curves: A grid's, one for each seed it was trained with; replays are shared among them.
    """
    found = {name: [] for name in contenders}
    for number in range(replays):
        curves = all_curves[number % len(all_curves)]
        draw = Random(f"{curves.grid} {number}")
        order = list(range(len(curves.configs)))
        draw.shuffle(order)
        known = len(curves.examples[0][0])
        seen = draw.sample(range(known), min(SEEN_ROWS, known // 2))
        for name, play in contenders.items():
            found[name].append(play(curves, order, seen))
    return found


def alarms(curves):
    """Alerts per run of a grid in which nothing stops, and how many of them are false."""
    seen = range(min(SEEN_ROWS, len(curves.examples[0][0])))
    replay = Playback(curves.configs, (), chunks=grids.CHUNKS, curves=curves, seen=seen).run()
    found = monitors.look(monitors.DEFAULT, replay.state, replay.rows)
    false = [one for one in found if grids.went_on(replay.rows[one.run], one.step)]
    return len(found) / len(curves.configs), len(false) / len(curves.configs)


def table(title, found):
    """Print a line for each contender."""
    print(f"\n{title}")
    print(f"  {'':<40} {'tokens':>7} {'regret':>8} {'95 %':>8} {'max':>8} {'lost':>6} {'wrong':>7}")
    for name, results in found.items():
        regrets = sorted(r.regret for r in results)
        tokens = statistics.fmean(r.tokens for r in results)
        lost = statistics.fmean(r.lost for r in results)
        stops = sum(r.stops for r in results)
        wrong = sum(r.wrong for r in results) / stops if stops else 0.0
        print(
            f"  {name:<40} {tokens:>6.1%} {statistics.median(regrets):>7.2%} "
            f"{quantile(regrets, 0.95):>8.2%} {regrets[-1]:>8.2%} {lost:>6.0%} {wrong:>7.2%}",
            flush=True,
        )


# ---------------------------------------------------------------------------------------- the time


def of_solo(setting, configs=4):
    """Plain TRL one by one against the engine, in processor seconds, for a part of the grid.

    Both evaluate and save at chunk ends; plain TRL gives no answers there, so the engine does not.
    """
    setting.prepare()
    _, rows, held = setting.parts()
    held = held[:SEEN_ROWS]
    picked = RFGridSearch(setting.group("benign")).runs()
    picked = [picked[i * len(picked) // configs] for i in range(configs)]
    start = time.process_time()
    exp = workload.Experiment("part", root=workload.scratch())
    with workload.contextlib.redirect_stdout(None):
        exp.run_fit(
            [c.model for c in picked], setting.load, rows, held, num_chunks=grids.CHUNKS, seed=1,
            generate_rows=0, eval_budget=1, panel=False,
        )  # fmt: skip
        exp.wait()
        exp.end()
    engine = time.process_time() - start
    start = time.process_time()
    for config in picked:
        plain(setting, config, rows, held)
    return (time.process_time() - start) / engine


def plain(setting, config, rows, held):
    """One run as a user's script trains it: load, tokenise, train; evaluate and save at chunks."""
    import datasets
    from trl import SFTConfig, SFTTrainer

    from rapidfire_jupyter.training import trainers

    values = trainers.argument_values(config, 1)
    steps = len(rows) // values["per_device_train_batch_size"]
    values.update(eval_strategy="steps", eval_steps=max(1, steps // grids.CHUNKS))
    values.update(save_strategy="steps", save_steps=max(1, steps // grids.CHUNKS))
    model, tokens = setting.load({"model_name": config.model.model_name})
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(output_dir=str(workload.scratch()), **values),
        train_dataset=datasets.Dataset.from_list(rows),
        eval_dataset=datasets.Dataset.from_list(held),
        processing_class=tokens,
        peft_config=trainers.peft_object(config),
    )
    trainer.remove_callback(workload.PrinterCallback)
    trainer.train()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where bases and curves are kept")
    there = (str(at / CSV) for at in (ROOT, ROOT.parent) if (at / CSV).exists())
    parser.add_argument("--csv", default=next(there, None), help="questions and answers")
    parser.add_argument("--demo", action="store_true", help="take the project's demo data")
    parser.add_argument("--grids", nargs="+", choices=grids.GRIDS, default=[*grids.GRIDS])
    parser.add_argument("--seeds", type=int, default=1, help="how often each grid is trained")
    parser.add_argument("--replays", type=int, default=20)
    parser.add_argument("--skip-time", action="store_true", help="without the comparison to TRL")
    options = parser.parse_args()
    csv = None if options.demo else options.csv
    folder = options.folder or ROOT / ".cache/bench-decide" / (Path(csv).stem if csv else "demo")
    folder.mkdir(parents=True, exist_ok=True)
    setting = grids.Setting(folder, csv)
    source = Path(csv).name if csv else "the project's demo data"
    print(f"48 configurations on {source}, {options.replays} replays over {options.seeds} seed(s)")
    share = None
    for grid in options.grids:
        known = [grids.curves(setting, grid, seed) for seed in range(1, options.seeds + 1)]
        found = compare(known, options.replays, CONTENDERS)
        trained = ", ".join(f"{c.seconds:.0f} s" for c in known)
        table(f"{grid} grid (trained to the end in {trained})", found)
        told, false = zip(*(alarms(one) for one in known), strict=True)
        print(
            f"  monitors: {statistics.fmean(told):.3f} alerts a run, "
            f"{statistics.fmean(false):.3f} of them false"
        )
        if grid == "benign":
            share = statistics.fmean(r.tokens for r in found["guarded halving (default)"])
    if share is not None and not options.skip_time:
        solo = of_solo(setting)
        print(
            f"\ntime to the best configuration of the benign grid, plain TRL one by one / engine "
            f"with guarded halving: {solo / share:.1f} x = of_solo {solo:.2f} / of_budget "
            f"{share:.3f}"
        )


if __name__ == "__main__":
    main()
