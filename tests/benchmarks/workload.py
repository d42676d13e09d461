"""What the benchmarks train: LoRA runs on one base, by the engine or by plain TRL, in one process.

Import it first: it sets the process up (one thread, no network, no bars) before torch is loaded.
"""

import contextlib
import os
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

import datasets
import tiny
import torch
from transformers import PrinterCallback, TrainerCallback, set_seed
from transformers.utils import logging as transformers_logging

from rapidfire_jupyter import Experiment, RFLoraConfig, RFModelConfig, RFSFTConfig
from rapidfire_jupyter.training import mixed

warnings.simplefilter("ignore", FutureWarning)
torch.set_num_threads(1)
datasets.disable_progress_bars()
transformers_logging.set_verbosity_error()
transformers_logging.disable_progress_bar()

SEED = 42
BATCH = 4
SIZES = {"tiny": {"hidden": 32, "layers": 2}, "10M": {"hidden": 384, "layers": 7}}
LORA = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"}
_scratch = tempfile.TemporaryDirectory(prefix="rapidfire-bench-")


def scratch():
    """A new empty folder; all are removed when the process ends."""
    return Path(tempfile.mkdtemp(dir=_scratch.name))


@dataclass(frozen=True)
class Work:
    """N runs that differ in their learning rate. One epoch has `steps` steps.

    Attributes:
        size: Name of a base in SIZES; it is loaded from a folder, as a user's would be.
        chunks: Chunks of the epoch; both sides evaluate at the chunks' ends if `evaluate`.
    """

    size: str
    runs: int
    steps: int
    chunks: int = 1
    evaluate: bool = False
    folder: Path = field(default_factory=scratch)

    def __post_init__(self):
        assert self.steps % self.chunks == 0
        tiny.model(**SIZES[self.size]).save_pretrained(self.folder)
        tiny.tokenizer().save_pretrained(self.folder)

    @property
    def train(self):
        return rows(self.steps * BATCH, 0)

    @property
    def eval(self):
        return rows(4 * BATCH, 100_000) if self.evaluate else None

    @property
    def rates(self):
        return [1e-3 / (run + 1) for run in range(self.runs)]

    def load(self, config=None):
        """The create_model_fn of both sides."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32)
        return model, AutoTokenizer.from_pretrained(self.folder)

    def arguments(self, rate):
        return {
            "learning_rate": rate,
            "per_device_train_batch_size": BATCH,
            "per_device_eval_batch_size": BATCH,
            "num_train_epochs": 1,
            "logging_steps": 8,
            "bf16": False,
            "gradient_checkpointing": False,
        }

    def configs(self):
        return [
            RFModelConfig(
                str(self.folder),
                peft_config=RFLoraConfig(**LORA),
                training_args=RFSFTConfig(**self.arguments(rate)),
            )
            for rate in self.rates
        ]


@dataclass(frozen=True)
class Outcome:
    """What a side took, in seconds, and what it trained: the last losses show it was the same.

    `cpu_s` is the processor's time for the whole process: on a busy machine it varies less.
    `first_eval_s` is when the last of the runs had its first evaluation, all at the same step.
    """

    wall_s: float
    cpu_s: float
    first_eval_s: float
    losses: list[float]


def rows(count, start):
    """Prompt and completion rows of about 30 tokens, so that a step takes 0.1 s on one thread."""
    return [
        {
            "prompt": f"{n} {tiny.sentence(n, 3 + n % 4)}",
            "completion": f" {tiny.sentence(n + 1, 3 + n % 5)} {n}",
        }
        for n in range(start, start + count)
    ]


def experiment(work, **how):
    """Start the engine on the work; returns the experiment, training."""
    exp = Experiment("bench", root=scratch())
    # Plain TRL gives no answers, and evaluates each time.
    how = {"generate_rows": 0, "eval_budget": 1, **how}
    with contextlib.redirect_stdout(None):
        exp.run_fit(
            work.configs(), work.load, work.train, work.eval,
            num_chunks=work.chunks, seed=SEED, **how,
        )  # fmt: skip
    return exp


def sliced(work, **how):
    """Train the work with the engine, from `run_fit` to the experiment's end."""
    start, cpu, clock = time.perf_counter(), time.process_time(), time.time()
    exp = experiment(work, **how)
    exp.wait()
    exp.end()
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    assert all(run.status == "completed" for run in exp.runs), [run.error for run in exp.runs]
    first = {}
    for event in exp.events:
        if event.kind == "logged" and "eval_loss" in event.data["row"]:
            first.setdefault(event.run, event.time - clock)
    losses = [[row["loss"] for row in run.rows if "loss" in row][-1] for run in exp.runs]
    return Outcome(wall, cpu, max(first.values(), default=0.0), losses)


def one_by_one(work):
    """Train the work with plain TRL: each run loads, tokenises, builds and trains by itself."""
    start, cpu = time.perf_counter(), time.process_time()
    first, losses = [], []
    for rate in work.rates:
        watch = _FirstEvaluation()
        trainer = plain_trainer(work, rate, [watch])
        trainer.train()
        losses.append([row["loss"] for row in trainer.state.log_history if "loss" in row][-1])
        first.append(watch.at - start if work.evaluate else 0.0)
        del trainer
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    return Outcome(wall, cpu, max(first), losses)


def plain_trainer(work, rate, callbacks=(), base=None, train=None, **given):
    """A plain TRL trainer for one run of the work.

    Args:
        base: (model, tokenizer) if they are loaded already; they are used up.
        train: The data set if it is prepared already.
    """
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    set_seed(SEED)
    model, tokenizer = base or work.load()
    if work.evaluate:
        given = {"eval_strategy": "steps", "eval_steps": work.steps // work.chunks, **given}
    args = SFTConfig(
        **{
            "output_dir": str(scratch()), "seed": SEED, "data_seed": SEED, "report_to": "none",
            "use_cpu": True, "disable_tqdm": True, **work.arguments(rate), **given,
        }
    )  # fmt: skip
    trainer = SFTTrainer(
        model=model,
        args=args,
        train_dataset=train or datasets.Dataset.from_list(work.train),
        eval_dataset=datasets.Dataset.from_list(work.eval) if work.evaluate else None,
        processing_class=tokenizer,
        peft_config=LoraConfig(**LORA),
        callbacks=list(callbacks),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


@contextlib.contextmanager
def shared(wanted):
    """While inside, runs share batches or do not."""
    kept = mixed.MOST_ROWS
    mixed.MOST_ROWS = kept if wanted else 0
    yield
    mixed.MOST_ROWS = kept


class _FirstEvaluation(TrainerCallback):
    at = float("inf")

    def on_evaluate(self, args, state, control, **kwargs):
        self.at = min(self.at, time.perf_counter())
