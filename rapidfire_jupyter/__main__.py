"""`python -m rapidfire_jupyter demo`: the quick start as a command, for a shell or a server.

It takes the same steps as notebooks/01_quickstart.ipynb, through the public names only. Nothing
here is needed by a notebook.
"""

import argparse
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

if TYPE_CHECKING:
    import pandas as pd
    from datasets import Dataset

EVAL_SHARE = 4  # one row to evaluate on for this many rows to train on
REFRESH_S = 3.0
HEADER = f"{'run':>4}  {'status':<9}  {'step':>5}  {'loss':>7}  {'eval_loss':>9}  config"


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
    exp = Experiment(options.name, root=options.root)
    try:
        exp.run_fit(
            RFGridSearch(configs(options.runs), trainer_type="SFT"),
            create_model,
            train_rows,
            eval_rows,
            num_chunks=4,
            seed=42,
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
            per_device_train_batch_size=4,
            per_device_eval_batch_size=4,
            num_train_epochs=1,
            max_length=256,
            logging_steps=1,
            eval_strategy="chunk",
            gradient_checkpointing=False,
        ),
    )


def create_model(config: Mapping[str, Any]) -> tuple[Any, Any]:  # Any: config values, HF objects
    """Load the demo's model from its GGUF file, unpacked to bfloat16: packed weights can't train."""
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
    print(f"{'time':>5} {HEADER}")
    while True:
        resting = exp.wait(timeout=every_s)
        elapsed_s = int(time.monotonic() - started)
        for run in exp.runs:
            row = run_row(run)
            if shown.get(run.id) != row:
                shown[run.id] = row
                print(f"{elapsed_s // 60:>2}:{elapsed_s % 60:02} {row}", flush=True)
        if resting:
            return


def run_row(run: Any) -> str:  # Any: a run of Experiment.runs
    """How one run stands, in one line under `HEADER`."""
    history = run.history
    step, loss = _latest(history, "step"), _latest(history, "loss")
    eval_loss = _latest(history, "eval_loss")
    return (
        f"{run.id:>4}  {run.status:<9}  {_text(step, '.0f'):>5}  {_text(loss, '.3f'):>7}  "
        f"{_text(eval_loss, '.3f'):>9}  {describe(run.config)}"
    )


def describe(config: Mapping[str, Any]) -> str:  # Any: config values
    """What tells the demo's runs apart."""
    targets = config["peft_config.target_modules"]
    names = targets if isinstance(targets, str) else ",".join(targets)
    rate = config["training_args.learning_rate"]
    return f"r={config['peft_config.r']} on {names}, learning rate {rate:g}"


def print_ranking(exp: Experiment) -> None:
    """Print the runs by their last eval_loss, and where the best adapter lies."""
    last = {run.id: _latest(run.history, "eval_loss") for run in exp.runs}
    ranked = [run for run in exp.runs if last[run.id] is not None]
    ranked.sort(key=lambda run: (last[run.id], run.id))
    print("\nranking by eval_loss")
    for place, run in enumerate(ranked, start=1):
        exact = "" if run.exact else "  (not exact)"
        print(f"{place:>3}. run {run.id}  {last[run.id]:.3f}  {describe(run.config)}{exact}")
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
    demo.add_argument("--rows", type=int, default=96, help="rows to train on (default: 96)")
    demo.add_argument(
        "--runs", type=int, choices=(1, 2, 4), default=4, help="how many configs (default: 4)"
    )
    demo.add_argument("--name", default="demo", help="of the experiment (default: demo)")
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


def _latest(history: "pd.DataFrame", column: str) -> float | None:
    """The last value of a column that is there."""
    if column not in history:
        return None
    values = history[column].dropna()
    return float(values.iloc[-1]) if len(values) else None


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


if __name__ == "__main__":
    sys.exit(main())
