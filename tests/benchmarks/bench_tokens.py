"""Micro-batches by tokens against micro-batches of a fixed number of rows, where lengths differ.

The same optimizer steps of 32 rows (DPO and Reward: 16 pairs), one in eight long and the others
short, in plain TRL: as 4 x 8 rows, and in parts of as many padded tokens as 4 of the longest rows
have, so that the largest micro-batch is the same. Processor time, A B B A; tokens that were
computed, padding included; how far the steps' losses are apart.
"""

import tempfile
import time

import torch
import workload
from datasets import Dataset
from figures import arguments, median, ratio, show
from peft import LoraConfig
from transformers import PrinterCallback
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

from rapidfire_jupyter.training.token_budget import compute_in_parts

tiny = workload.tiny
ROWS, LONG = 32, 48  # of a step; words of a long row
SIZES = {"tiny": {"hidden": 64, "layers": 2}, "10M": {"hidden": 256, "layers": 10}}
KINDS = {
    "SFT": (SFTTrainer, SFTConfig),
    "DPO": (DPOTrainer, DPOConfig),
    "Reward": (RewardTrainer, RewardConfig),
}


def main():
    options = arguments(__doc__)
    for size in ("tiny",) if options.quick else SIZES:
        for kind in KINDS:
            compare(kind, size, options)


def compare(kind, size, options):
    rounds, steps = options.rounds or (2 if options.quick else 4), 2 if options.quick else 6
    each = 1 if kind == "SFT" else 2  # rows of an example
    sides = {"fixed": (4 // each, None), "parts": (ROWS // each, 4 * longest(kind))}
    took, tokens, losses = {name: [] for name in sides}, {}, {}
    for number in range(rounds + 1):  # the first one warms up
        for name in list(sides) if number % 2 == 0 else list(sides)[::-1]:
            seconds, tokens[name], losses[name] = train(kind, SIZES[size], *sides[name], steps)
            took[name].append(seconds)
    apart = max(abs(a - b) / b for a, b in zip(losses["parts"], losses["fixed"], strict=True))
    figures = [
        ratio("processor time of a step, parts / fixed", took["parts"][1:], took["fixed"][1:]),
        ratio("tokens computed, parts / fixed", [tokens["parts"]], [tokens["fixed"]]),
        median("losses of parts and fixed apart by", [apart], "of the loss"),
    ]
    show(f"{kind}, steps of {ROWS} rows of different lengths, {size}", figures, options.json)


def rows(kind, count):
    made = []
    for n in range(count):
        words = LONG if n % 8 == 0 else 4 + n % 9
        answer, other = (" " + tiny.sentence(n + k, words) for k in range(2))
        if kind == "SFT":
            made.append({"prompt": f"{n} ", "completion": answer})
        else:
            made.append({"prompt": f"{n} ", "chosen": answer, "rejected": other})
    return made


def longest(kind):
    tokenizer = tiny.tokenizer()
    texts = ["".join(row.values()) for row in rows("SFT", 64)]
    if kind != "SFT":
        texts = [r["prompt"] + r[side] for r in rows(kind, 64) for side in ("chosen", "rejected")]
    return max(len(tokenizer(text)["input_ids"]) + 1 for text in texts)


def train(kind, shape, batch, max_tokens, steps):
    """Processor seconds of some steps, the tokens that the model was given, and the losses."""
    trainer_class, arguments_class = KINDS[kind]
    examples = ROWS if kind == "SFT" else ROWS // 2
    with tempfile.TemporaryDirectory() as folder:
        model, given = tiny.model(**shape, scores=kind == "Reward"), []
        trainer = trainer_class(
            model,
            args=arguments_class(
                folder,
                per_device_train_batch_size=batch,
                gradient_accumulation_steps=examples // batch,
                max_steps=steps,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                logging_steps=1,
            ),
            train_dataset=Dataset.from_list(rows(kind, 2 * ROWS)),
            processing_class=tiny.tokenizer(),
            peft_config=LoraConfig(
                r=8,
                target_modules="all-linear",
                task_type="SEQ_CLS" if kind == "Reward" else "CAUSAL_LM",
            ),
        )
        trainer.remove_callback(PrinterCallback)
        if max_tokens is not None:
            compute_in_parts(trainer, max_tokens, pairs=kind != "SFT")
        embed = trainer.model.get_input_embeddings()
        embed.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0].numel()))
        started = time.process_time()
        trainer.train()
        took = time.process_time() - started
        losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        return took, sum(given), losses


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
