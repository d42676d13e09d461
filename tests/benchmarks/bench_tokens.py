"""Micro-batches by tokens against micro-batches of a fixed number of rows, where lengths differ.

The same optimizer steps of 32 rows (DPO and Reward: 16 pairs), one in eight long and the others
short, in plain TRL: as 4 x 8 rows, and in parts of as many padded tokens as 4 of the longest rows
have, so that the largest micro-batch is the same. Processor time, A B B A; tokens that were
computed, padding included; how far the steps' losses are apart. GRPO and RLOO sample 32 completions
for a step, of which each token ends one in twelve, up to 64 tokens; what sampling itself takes is
the same on both sides, and is left out in a line of its own.
"""

import tempfile
import time

import torch
import workload
from datasets import Dataset
from figures import arguments, median, ratio, show
from peft import LoraConfig
from transformers import PrinterCallback
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    KTOConfig,
    KTOTrainer,
    RewardConfig,
    RewardTrainer,
    RLOOConfig,
    RLOOTrainer,
    SFTConfig,
    SFTTrainer,
)

from rapidfire_jupyter.training.token_budget import compute_in_parts

tiny = workload.tiny
ROWS, LONG = 32, 48  # of a step; words of a long row
ENDS, MOST = 12, 64  # of what is sampled: one token in so many ends it; tokens at most
SIZES = {"tiny": {"hidden": 64, "layers": 2}, "10M": {"hidden": 256, "layers": 10}}
KINDS = {
    "SFT": (SFTTrainer, SFTConfig),
    "DPO": (DPOTrainer, DPOConfig),
    "Reward": (RewardTrainer, RewardConfig),
    "KTO": (KTOTrainer, KTOConfig),
    "GRPO": (GRPOTrainer, GRPOConfig),
    "RLOO": (RLOOTrainer, RLOOConfig),
}
PAIRS, SAMPLED = ("DPO", "Reward"), ("GRPO", "RLOO")


def main():
    options = arguments(__doc__)
    for size in ("tiny",) if options.quick else SIZES:
        for kind in KINDS:
            compare(kind, size, options)


def compare(kind, size, options):
    rounds, steps = options.rounds or (2 if options.quick else 4), 2 if options.quick else 6
    each = 2 if kind in PAIRS else 1  # rows of an example
    sides = {"fixed": (4 // each, None), "parts": (ROWS // each, 4 * longest(kind))}
    took, learned, tokens, losses = {n: [] for n in sides}, {n: [] for n in sides}, {}, {}
    for number in range(rounds + 1):  # the first one warms up
        for name in list(sides) if number % 2 == 0 else list(sides)[::-1]:
            made = train(kind, SIZES[size], *sides[name], steps)
            seconds, sampling, tokens[name], losses[name] = made
            took[name].append(seconds)
            learned[name].append(seconds - sampling)
    apart = max(abs(a - b) for a, b in zip(losses["parts"], losses["fixed"], strict=True))
    figures = [
        ratio("processor time of a step, parts / fixed", took["parts"][1:], took["fixed"][1:]),
        ratio("tokens computed, parts / fixed", [tokens["parts"]], [tokens["fixed"]]),
        median("losses of parts and fixed apart by", [apart], ""),
    ]
    if kind in SAMPLED:
        without = "    without sampling"
        figures.insert(1, ratio(without, learned["parts"][1:], learned["fixed"][1:]))
    show(f"{kind}, steps of {ROWS} rows of different lengths, {size}", figures, options.json)


def rows(kind, count):
    made = []
    for n in range(count):
        words = LONG if n % 8 == 0 else 4 + n % 9
        answer, other = (" " + tiny.sentence(n + k, words) for k in range(2))
        if kind in SAMPLED:
            made.append({"prompt": f"{n} {tiny.sentence(n, 4)}"})
        elif kind == "KTO":
            made.append({"prompt": f"{n} ", "completion": answer, "label": n % 3 > 0})
        elif kind == "SFT":
            made.append({"prompt": f"{n} ", "completion": answer})
        else:
            made.append({"prompt": f"{n} ", "chosen": answer, "rejected": other})
    return made


def longest(kind):
    tokenizer = tiny.tokenizer()
    texts = [row["prompt"] + row["completion"] for row in rows("SFT", 64)]
    if kind in PAIRS:
        texts = [r["prompt"] + r[side] for r in rows(kind, 64) for side in ("chosen", "rejected")]
    if kind in SAMPLED:
        texts = [row["prompt"] for row in rows(kind, 64)]
    most = MOST if kind in SAMPLED else 1
    return max(len(tokenizer(text)["input_ids"]) + most for text in texts)


def train(kind, shape, batch, max_tokens, steps):
    """Processor seconds of some steps and of sampling in them; tokens computed; losses."""
    trainer_class, arguments_class = KINDS[kind]
    examples = ROWS // 2 if kind in PAIRS else ROWS
    more = {"num_generations": 4, "max_completion_length": MOST} if kind in SAMPLED else {}
    if kind == "KTO":  # its other loss depends on the rows of a micro-batch
        more = {"loss_type": "apo_zero_unpaired"}
    reward = {"reward_funcs": [tiny.reward_length]} if kind in SAMPLED else {}
    with tempfile.TemporaryDirectory() as folder:
        model, given, sampling = tiny.model(**shape, scores=kind == "Reward"), [], [0.0]
        if kind in SAMPLED:
            model.generation_config.eos_token_id = list(range(2, 320, ENDS))
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
                **more,
            ),
            train_dataset=Dataset.from_list(rows(kind, 2 * ROWS)),
            processing_class=tiny.tokenizer(),
            peft_config=LoraConfig(
                r=8,
                target_modules="all-linear",
                task_type="SEQ_CLS" if kind == "Reward" else "CAUSAL_LM",
            ),
            **reward,
        )
        trainer.remove_callback(PrinterCallback)
        if max_tokens is not None:
            compute_in_parts(trainer, max_tokens)
        generate = getattr(trainer.model, "generate", None)

        def timed(*inputs, **named):
            before, seen = time.process_time(), len(given)
            rows = generate(*inputs, **named)
            sampling[0] += time.process_time() - before
            del given[seen:]
            return rows

        trainer.model.generate = timed
        embed = trainer.model.get_input_embeddings()
        embed.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0].numel()))
        started = time.process_time()
        trainer.train()
        took = time.process_time() - started
        losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        return took, sampling[0], sum(given), losses


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
