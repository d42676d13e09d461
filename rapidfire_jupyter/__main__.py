"""`python -m rapidfire_jupyter demo`: the quick start as a command, for a shell or a server.

It takes the same steps as notebooks/01_quickstart.ipynb, through the public names only. Nothing
here is needed by a notebook.
"""

import argparse
import contextlib
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rapidfire_jupyter import (
    Experiment,
    List,
    RFGridSearch,
    RFLoraConfig,
    RFModelConfig,
    RFSFTConfig,
)
from rapidfire_jupyter.data.demo import demo_model_path, load_csv, load_demo
from rapidfire_jupyter.errors import DataError, RapidFireError
from rapidfire_jupyter.state import Run

if TYPE_CHECKING:
    from datasets import Dataset

EVAL_SHARE = 4  # one row to evaluate on for this many rows to train on
REFRESH_S = 3.0
HEADER = "  time  run  status        step  chunk    loss  eval_loss  config"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; None takes that of the process. Returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return demo(options)
    except RapidFireError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


def demo(options: argparse.Namespace) -> int:
    """Train the configs, show how they do, and rank them. Returns 1 if a run failed."""
    train_rows, eval_rows = _load_rows(options.data, options.rows)
    name = options.name or (f"demo-{options.data.stem}" if options.data else "demo")
    exp = Experiment(name, root=options.root)
    try:
        exp.run_fit(
            RFGridSearch(configs(options.runs), trainer_type="SFT"),
            create_model,
            train_rows,
            eval_rows,
            num_chunks=4,
            seed=42,
            generate_rows=8,
            max_new_tokens=24,
            eval_budget=0.5,
        )
        watch(exp, REFRESH_S)
        print_ranking(exp)
        return int(any(run.status == "failed" for run in exp.runs))
    except KeyboardInterrupt:
        print("\nstopped at the last checkpoints; the same command goes on from there")
        return 130
    finally:
        exp.end()


def configs(runs: int) -> RFModelConfig:
    """The search space: 1, 2 or 4 runs of a small and a large adapter with two learning rates."""
    adapters = [
        RFLoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"]),
        RFLoraConfig(r=32, lora_alpha=64, target_modules="all-linear"),
    ]
    return RFModelConfig(
        model_name="SmolLM2-135M-Instruct",
        peft_config=List(adapters[: min(runs, 2)]),
        training_args=RFSFTConfig(
            learning_rate=List([1e-3, 1e-4][: max(runs // 2, 1)]),
            per_device_train_batch_size=2,  # 4 rows a step, in little memory
            gradient_accumulation_steps=2,
            per_device_eval_batch_size=4,
            num_train_epochs=1,
            max_length=256,
            logging_steps=1,
        ),
    )


def create_model(config: Mapping[str, Any]) -> tuple[Any, Any]:  # Any: config values, HF objects
    """Load the demo's model from its GGUF file, unpacked: packed weights cannot be trained."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    file = demo_model_path()
    model = AutoModelForCausalLM.from_pretrained(
        str(file.parent),
        gguf_file=file.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    return model, AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)


def watch(exp: Experiment, every_s: float) -> None:
    """Print a row whenever a run has moved, until all have come to rest."""
    started, shown = time.monotonic(), dict[int, str]()
    print(HEADER)
    resting = False
    while not resting:
        with contextlib.suppress(TimeoutError):
            exp.wait(timeout=every_s)
            resting = True
        minutes, seconds = divmod(int(time.monotonic() - started), 60)
        for run in exp.runs:
            row = run_row(run.facts, run.rows)
            if shown.get(run.id) != row:
                shown[run.id] = row
                print(f"{minutes:>3}:{seconds:02} {row}", flush=True)


def run_row(run: Run, logged: Sequence[Mapping[str, float]]) -> str:
    """How one run stands, in one line under `HEADER`."""
    step = max([run.step, *(int(row["step"]) for row in logged)])
    steps = f"{step}/{run.total_steps or '?'}"
    chunks = f"{run.chunk}/{len(run.chunk_ends) or '?'}"
    loss, eval_loss = _number(latest(logged, "loss")), _number(latest(logged, "eval_loss"))
    return (
        f"{run.id:>4}  {run.status:<9}  {steps:>7}  {chunks:>5}  {loss:>6}  {eval_loss:>9}"
        f"  {run.name}"
    )


def latest(logged: Sequence[Mapping[str, float]], metric: str) -> float:
    """The last value of a metric; NaN if it was never logged."""
    return next((float(row[metric]) for row in reversed(logged) if metric in row), math.nan)


def print_ranking(exp: Experiment) -> None:
    """Print the runs by their last eval_loss, and where the best adapter lies."""
    scores = {run.id: latest(run.rows, "eval_loss") for run in exp.runs}
    ranked = [run for run in exp.runs if not math.isnan(scores[run.id])]
    ranked.sort(key=lambda run: (scores[run.id], run.id))
    print("\nranking by eval_loss")
    for place, run in enumerate(ranked, start=1):
        print(f"{place:>4}.  {scores[run.id]:.3f}  run {run.id}  {run.name}  ({run.exact})")
    for run in exp.runs:
        if run.status == "failed":
            print(f"run {run.id} failed: {run.error}")
    if ranked:
        print(f"\nbest adapter: {exp.best('eval_loss').checkpoint}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rapidfire_jupyter", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="train a few configs on CPU or GPU and rank them")
    demo.add_argument(
        "--data",
        type=Path,
        metavar="CSV",
        help="a file with the columns instruction and response; default: the demo data",
    )
    demo.add_argument("--rows", type=int, default=64, help="rows to train on (default: 64)")
    demo.add_argument(
        "--runs", type=int, choices=(1, 2, 4), default=4, help="how many configs (default: 4)"
    )
    demo.add_argument("--name", help="of the experiment (default: demo, or demo-CSV)")
    demo.add_argument(
        "--root",
        type=Path,
        default=Path("rapidfire_experiments"),
        help="folder of experiments (default: rapidfire_experiments)",
    )
    return parser


def _load_rows(data: Path | None, rows: int) -> tuple["Dataset", "Dataset"]:
    """Rows to train and to evaluate on, from a CSV file or the demo data."""
    if rows < EVAL_SHARE:
        raise DataError(f"--rows must be >= {EVAL_SHARE}, got {rows}")
    if data is not None:
        return load_csv(data, rows, rows // EVAL_SHARE)
    train, evaluation = load_demo("train"), load_demo("eval")
    if rows > len(train):
        raise DataError(f"--rows must be <= {len(train)} for the demo data, got {rows}")
    share = min(rows // EVAL_SHARE, len(evaluation))
    return train.select(range(rows)), evaluation.select(range(share))


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


if __name__ == "__main__":
    sys.exit(main())
