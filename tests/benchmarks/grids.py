"""Three grids of 48 configurations, trained once by the engine, with every chunk end evaluated.

The data are questions to a customer service with answers: a CSV file with the columns
instruction, response and intent where one is given, else the project's demo data. The two bases are
Llamas of a few hundred thousand weights, trained a little on answers to questions of other kinds,
so that adapters have something to learn. What costs minutes is kept in a folder and is not made
again.

Import `workload` first: it sets the process up.
"""

import contextlib
import csv
import json
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import torch
import workload

from rapidfire_jupyter import (
    Experiment,
    List,
    RFGridSearch,
    RFLoraConfig,
    RFModelConfig,
    RFSFTConfig,
)
from rapidfire_jupyter.comparison import NOISE
from rapidfire_jupyter.data import demo

CHUNKS = 8
BASES = {"large": {"hidden": 96, "layers": 4}, "small": {"hidden": 64, "layers": 2}}
MODULES = {"qv": ["q_proj", "v_proj"], "all": "all-linear"}
MAX_LENGTH = 64  # tokens of a row; longer ones are cut
GRIDS = {
    # The published one: 2 bases x ranks 8/32 x modules q,v/all x 3 learning rates x batch 8/16.
    "benign": {
        "rates": (1e-3, 3e-3, 1e-2),
        "warm_ups": (0.0,),
        "batches": (8, 16),
    },
    # Long warm-ups, and rates that are too high but look good early.
    "adversarial": {
        "rates": (3e-3, 1e-2, 3e-2),
        "warm_ups": (0.0, 0.3),
        "batches": (8,),
    },
    # Curves that cross late: lower rates lead for long, a high one that falls to nothing wins.
    "crossing": {
        "rates": (1e-3, 3e-3, 1e-2),
        "warm_ups": (0.0, 0.5),
        "batches": (8,),
        "schedules": ("constant_with_warmup", "cosine"),
        "ranks": (8,),
    },
}


@dataclass(frozen=True)
class Curves:
    """One grid as it was trained.

    Attributes:
        configs: Flat configs of the runs, in the order of their ids.
        totals: Steps of each run.
        losses: Logged training rows of each run: step, loss, learning rate.
        examples: Losses of each eval row at each chunk end, (run, chunk, row).
        seconds: Wall time of the training, without evaluation.
        steps: Optimizer steps of all runs.
    """

    grid: str
    seed: int
    configs: list
    totals: list
    losses: list
    examples: list
    seconds: float
    steps: int


def questions(csv_path):
    """Questions with answers by intent, as prompt and completion; each question once."""
    found: dict[str, dict[str, str]] = {}
    if csv_path is None:
        demo_rows = [*demo.load_demo("train"), *demo.load_demo("eval")]
        pairs = [(r["prompt"][0]["content"], r["completion"][0]["content"]) for r in demo_rows]
        found = {str(i % 2): dict(pairs[i % 2 :: 2]) for i in range(2)}
    else:
        with open(csv_path, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                answer = " ".join(row["response"].split())
                found.setdefault(row.get("intent", ""), {})[row["instruction"].strip()] = answer
    return {
        intent: [
            {"prompt": question + "\n", "completion": " " + answer[:160]}
            for question, answer in sorted(pairs.items())
        ]
        for intent, pairs in sorted(found.items())
    }


@dataclass(frozen=True)
class Setting:
    """The data and bases of all grids, in a folder.

    Attributes:
        csv: Path of the questions and answers; None takes the demo data.
    """

    folder: Path
    csv: str | None
    train_rows: int = 768
    eval_rows: int = 192
    before_rows: int = 2048

    def parts(self):
        """Rows to train the bases on (of other intents), to train on, to evaluate on."""
        groups = list(questions(self.csv).values())
        if len(groups) == 1:  # a file without a column intent
            groups = [groups[0][::2], groups[0][1::2]]
        other = [row for rows in groups[::2] for row in rows]
        own = [row for rows in groups[1::2] for row in rows]
        draw = Random(0)
        draw.shuffle(other)
        draw.shuffle(own)
        train = own[: min(self.train_rows, len(own) * 4 // 5)]
        return other[: self.before_rows], train, own[len(train) :][: self.eval_rows]

    def tokenizer(self):
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.folder / "large")

    def load(self, config):
        """The create_model_fn of the runs."""
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(
            self.folder / config["model_name"], dtype=torch.float32
        )
        return model, self.tokenizer()

    def prepare(self):
        """Make the tokenizer and the bases, unless they are there."""
        before, *_ = self.parts()
        for number, (name, size) in enumerate(BASES.items()):
            if (self.folder / name / "config.json").exists():
                continue
            tokens = made_tokenizer([r["prompt"] + r["completion"] for r in before])
            model = trained_base(size, tokens, before, seed=number)
            model.save_pretrained(self.folder / name)
            tokens.save_pretrained(self.folder / name)

    def group(self, grid):
        """The config group of a grid."""
        values = {"schedules": ("cosine",), "ranks": (8, 32), **GRIDS[grid]}
        return RFModelConfig(
            List(list(BASES)),
            peft_config=List(
                [
                    RFLoraConfig(r=r, lora_alpha=2 * r, target_modules=modules)
                    for r in values["ranks"]
                    for modules in MODULES.values()
                ]
            ),
            training_args=RFSFTConfig(
                learning_rate=List(values["rates"]),
                per_device_train_batch_size=List(values["batches"]),
                warmup_steps=List(values["warm_ups"]),
                lr_scheduler_type=List(values["schedules"]),
                num_train_epochs=1,
                max_length=MAX_LENGTH,
                logging_steps=1,
                bf16=False,
                gradient_checkpointing=False,
            ),
        )


def made_tokenizer(texts, size=1024):
    """A byte-level BPE tokenizer of some texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<pad>", "<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )


def trained_base(size, tokens, rows, seed, steps=400, batch=16):
    """A small Llama, trained a little on whole rows."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    hidden = size["hidden"]
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokens),
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=size["layers"],
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            tie_word_embeddings=True,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 40) * (1 - step / steps)
        at = [(step * batch + k) % len(rows) for k in range(batch)]
        ids, labels = padded(tokens, [rows[i] for i in at], whole=True)
        model(input_ids=ids, attention_mask=(ids != 0).long(), labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def padded(tokens, rows, whole=False):
    """Token ids and labels of rows, right-padded, (B, T); a loss is on completions only."""
    made = []
    for row in rows:
        prompt = tokens(row["prompt"])["input_ids"]
        answer = tokens(row["completion"])["input_ids"] + [tokens.eos_token_id]
        made.append(((prompt + answer)[:MAX_LENGTH], 0 if whole else min(len(prompt), MAX_LENGTH)))
    width = max(len(ids) for ids, _ in made)
    ids = torch.zeros(len(made), width, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for i, (row, start) in enumerate(made):
        ids[i, : len(row)] = torch.tensor(row)
        labels[i, start : len(row)] = ids[i, start : len(row)]
    return ids, labels


def went_on(rows, step):
    """Whether a run still learned after an alert: it became better than before by over the noise.

    True as well where that is not known: then the alert counts as false.
    """
    evals = [(row["step"], row["eval_loss"]) for row in rows if "eval_loss" in row]
    before = [value for at, value in evals if step is not None and at <= step]
    after = [value for at, value in evals if step is not None and at > step]
    return not before or (bool(after) and min(after) < (1 - NOISE) * min(before))


def curves(setting, grid, seed):
    """A grid's curves, from the folder or trained now."""
    file = setting.folder / f"{grid}-{seed}.json"
    if not file.exists():
        file.write_text(json.dumps(asdict(train(setting, grid, seed))))
    return Curves(**json.loads(file.read_text()))


def train(setting, grid, seed):
    """Train every run of a grid to its end, then evaluate each of its chunk ends."""
    setting.prepare()
    _, rows, _ = setting.parts()
    root = workload.scratch()
    exp = Experiment(grid, root=root)
    start = time.perf_counter()
    with contextlib.redirect_stdout(None):
        exp.run_fit(
            RFGridSearch(setting.group(grid)), setting.load, rows, num_chunks=CHUNKS, seed=seed,
            keep_checkpoints=CHUNKS + 1, panel=False,
        )  # fmt: skip
        exp.wait()
    seconds = time.perf_counter() - start
    assert all(run.status == "completed" for run in exp.runs), [run.error for run in exp.runs]
    judge = Judge(setting)
    found = Curves(grid, seed, [], [], [], [], seconds, 0)
    for run in exp.runs:
        facts = run.facts
        found.configs.append(dict(facts.config))
        found.totals.append(facts.total_steps)
        keep = ("step", "loss", "learning_rate")
        found.losses.append([{k: row[k] for k in keep} for row in run.rows if "loss" in row])
        found.examples.append([judge(run, end) for end in facts.chunk_ends])
    exp.end()
    shutil.rmtree(root)
    return Curves(**{**asdict(found), "steps": sum(found.totals)})


class Judge:
    """Losses of single eval rows, mean over a row's tokens, of an adapter in a checkpoint."""

    def __init__(self, setting):
        self._setting, self._models = setting, {}
        tokens = setting.tokenizer()
        _, _, rows = setting.parts()
        self._batches = [padded(tokens, rows[i : i + 64]) for i in range(0, len(rows), 64)]

    def __call__(self, run, step):
        from peft import PeftModel, set_peft_model_state_dict
        from safetensors.torch import load_file

        folder = run.checkpoint.parent / f"checkpoint-{step}"
        config = run.facts.config
        key = (
            config["model_name"],
            config["peft_config.r"],
            str(config["peft_config.target_modules"]),
        )
        if key not in self._models:
            base, _ = self._setting.load({"model_name": config["model_name"]})
            self._models[key] = PeftModel.from_pretrained(base, folder).eval()
        model = self._models[key]
        set_peft_model_state_dict(model, load_file(folder / "adapter_model.safetensors"))
        found = []
        with torch.no_grad():
            for ids, labels in self._batches:
                logits = model(input_ids=ids, attention_mask=(ids != 0).long()).logits[:, :-1]
                losses = torch.nn.functional.cross_entropy(
                    logits.transpose(1, 2), labels[:, 1:], reduction="none"
                )
                learned = (labels[:, 1:] != -100).sum(1).clamp(min=1)
                found += (losses.sum(1) / learned).tolist()
        return [round(loss, 5) for loss in found]
