"""(f) What policies and monitors cost, and how often monitors cry wolf over healthy runs.

Real grids of runs that learn, with all monitors and every policy that stops nothing here (a dry
run). Cost is the share of the training time that `deciding.look` takes, and its milliseconds per
slice with 48 runs. Alarms are alerts per run; every one of them is printed. One is false if the
run's eval loss went on falling after it, or if it is no fault of learning.
"""

import time

import grids
from figures import Figure, arguments, median, show
from workload import scratch, tiny

from rapidfire_jupyter import (
    BanditBoost,
    Experiment,
    Halving,
    List,
    Outliers,
    RFGridSearch,
    RFLoraConfig,
    RFModelConfig,
    RFSFTConfig,
    SlowLearners,
    Threshold,
    deciding,
)

SHARE = 2.0  # percent of the training time
ALARMS = 0.05  # a run
LEARNING = ("plateau", "overfitting")
POLICIES = (Halving(), Threshold(limit=1e9), Outliers(), SlowLearners(), BanditBoost())


def grid(batches, ranks, rates, epochs):
    """Runs that learn: a rank that is large enough, rates that are not too small."""
    loras = [RFLoraConfig(r=r, lora_alpha=2 * r, target_modules="all-linear") for r in ranks]
    return RFGridSearch(
        RFModelConfig(
            "tiny",
            peft_config=List(loras),
            training_args=RFSFTConfig(
                learning_rate=List(rates),
                per_device_train_batch_size=List(batches),
                num_train_epochs=epochs,
                logging_steps=1,
                lr_scheduler_type="cosine",
                warmup_steps=0.1,
            ),
        ),
        "SFT",
    )


def trained(search, rows, seed):
    """An experiment of a grid, and the seconds of each look in it."""
    took, look = [], deciding.look

    def timed(*given):
        began = time.perf_counter()
        look(*given)
        took.append(time.perf_counter() - began)

    deciding.look = timed
    try:
        exp = Experiment("oversight", root=scratch())
        exp.run_fit(
            search,
            tiny.create_model,
            tiny.sft_rows(rows),
            tiny.sft_rows(rows + 16)[rows:],
            num_chunks=4,
            seed=seed,
            policies=POLICIES,
            dry_run=True,
        ).wait()
    finally:
        deciding.look = look
    exp.end()
    return exp, took


def main():
    options = arguments(__doc__)
    rounds = options.rounds or (1 if options.quick else 3)
    shares, alarms, runs = [], [], 0
    for seed in range(rounds):
        search = grid([2, 4], [8, 16], [5e-3, 1e-2, 2e-2], 4)
        exp, took = trained(search, 48, seed)
        seconds = [e.data["seconds"] for e in exp.events if e.kind == "slice_ended"]
        shares.append(100 * sum(took) / sum(seconds))
        runs += len(exp.runs)
        for alert in (e for e in exp.events if e.kind == "alert"):
            learning = alert.data["kind"] in LEARNING
            true = learning and not grids.went_on(exp.run(alert.run).rows, alert.data["step"])
            alarms.append((alert, true))
        losses = [[row["loss"] for row in run.rows if "loss" in row] for run in exp.runs]
        falls = [own[0] - own[-1] for own in losses]
        span = f"{min(falls):.2f} to {max(falls):.2f}"
        print(f"seed {seed}: {len(exp.runs)} runs, losses fell by {span}")
    rates = [n / 2000 for n in range(2, 14)]
    wide, took = trained(grid([2, 4], [8, 16], rates, 1), 16 if options.quick else 48, 0)
    for alert, true in alarms:
        told = f"run {alert.run}: {alert.data['kind']}: {alert.data['text']}"
        print(f"{'true' if true else 'false'} alert: {told}")
    false = sum(not true for _, true in alarms)
    figures = [
        median("(f) policies and monitors / training", shares, "%", SHARE, f"{runs} runs"),
        Figure("    alerts / run", *[len(alarms) / runs] * 3, ""),
        Figure("    false alarms / run", *[false / runs] * 3, "", ALARMS),
        median(f"    a look with {len(wide.runs)} runs", [1e3 * s for s in took], "ms"),
        Figure(
            "    the longest look", *[1e3 * max(took)] * 3, "ms", None, f"{len(wide.runs)} runs"
        ),
    ]
    show(f"policies and monitors, {rounds} grids of {runs // rounds} runs", figures, options.json)


if __name__ == "__main__":
    main()
