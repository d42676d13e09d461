"""(h) Steps of 4 GRPO runs of one base that sample together, and of which each samples for itself.

What is measured is training: from the first slice to the end of the last run, rewards, updates and
hand-overs included, loading and building left out. Both sides must log the same losses. Shapes are
tried when they are first met, so short trainings gain less: the last line is of the second half.
"""

import contextlib
import time

import workload
from figures import arguments, ratio, show

from rapidfire_jupyter import Experiment, RFGridSearch, RFGRPOConfig, RFLoraConfig, RFModelConfig

RUNS, ROWS, GENERATIONS, TOKENS = 4, 8, 4, 32
STEPS = {"tiny": 40, "10M": 16}
TARGET = 0.95  # of the time of each for itself


def main():
    options = arguments(__doc__)
    for size in ("tiny",) if options.quick else ("tiny", "10M"):
        rounds = options.rounds or (2 if options.quick else 5)
        took = {"together": [], "each": []}
        for number in range(rounds):
            losses = {}
            for side in sorted(took, reverse=number % 2 == 1):
                seconds, losses[side] = trained(size, side == "together")
                took[side].append(seconds)
            assert losses["together"] == losses["each"], "not the same runs"
        title = f"{STEPS[size]} steps of {RUNS} GRPO runs, {ROWS} completions of {TOKENS} tokens"
        parts = ("(h) processor time", "    wall time", "    processor time, second half")
        figures = [
            ratio(name, *([one[n] for one in took[side]] for side in ("together", "each")), TARGET)
            for n, name in enumerate(parts)
        ]
        show(f"{title}, {size}, {rounds} rounds", figures, options.json)


def trained(size, together):
    """Seconds of training: of the processor, of the wall, of the processor for the second half."""
    work, marks = workload.Work(size, RUNS, STEPS[size]), {}

    def listen(event):
        step = event.data.get("step", 0)
        if event.kind == "slice_started" or event.kind == "run_completed":
            key = "half" if event.kind == "slice_started" and step else event.kind
            now = time.process_time(), time.perf_counter()
            marks[key] = now if event.kind == "run_completed" else marks.get(key, now)

    with workload.shared(together), contextlib.redirect_stdout(None):
        exp = Experiment("bench", root=workload.scratch())
        exp.run_fit(
            [RFGridSearch(one, "GRPO") for one in configs(work)], work.load, prompts(work),
            num_chunks=2, generate_rows=0, seed=workload.SEED,
        )  # fmt: skip
        exp._opened.log.subscribe(listen)
        exp.wait()
    assert all(run.status == "completed" for run in exp.runs), [run.error for run in exp.runs]
    taken = exp._fit.executor.generations.taken
    assert taken == (STEPS[size] * (RUNS - 1) if together else 0), taken
    losses = [[row["loss"] for row in run.rows if "loss" in row] for run in exp.runs]
    exp.end()
    begun, half, ended = (marks[key] for key in ("slice_started", "half", "run_completed"))
    return (ended[0] - begun[0], ended[1] - begun[1], ended[0] - half[0]), losses


def configs(work):
    how = {
        "per_device_train_batch_size": ROWS,
        "num_generations": GENERATIONS,
        "max_completion_length": TOKENS,
        "max_steps": work.steps,
        "logging_steps": 4,
        "bf16": False,
        "gradient_checkpointing": False,
    }
    return [
        RFModelConfig(
            str(work.folder),
            peft_config=RFLoraConfig(**workload.LORA),
            reward_funcs=[workload.tiny.reward_length],
            training_args=RFGRPOConfig(learning_rate=rate, **how),
        )
        for rate in work.rates
    ]


def prompts(work):
    """As many as one epoch of the steps takes."""
    count = work.steps * ROWS // GENERATIONS
    return [{"prompt": f"{n} {workload.tiny.sentence(n, 3 + n % 4)}"} for n in range(count)]


if __name__ == "__main__":
    main()
