"""Micro-batches by tokens against micro-batches of a fixed number of rows, where lengths differ.

The same optimizer steps of 32 rows, one row in eight long and the others short, in plain TRL: as
4 x 8 rows, and in parts of as many padded tokens as 4 of the longest rows have, so that the largest
micro-batch is the same. Processor time, A B B A; tokens that were computed, padding included.
"""

import tempfile
import time

import tiny
import torch
from datasets import Dataset
from figures import arguments, ratio, show
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

from rapidfire_jupyter.training.token_budget import compute_in_parts

ROWS, LONG = 32, 48  # of a step; words of a long row
SIZES = {"tiny": {"hidden": 64, "layers": 2}, "10M": {"hidden": 256, "layers": 10}}


def main():
    options = arguments(__doc__)
    for size in ("tiny",) if options.quick else SIZES:
        rounds = options.rounds or (2 if options.quick else 4)
        sides = {"fixed": (4, None), "parts": (ROWS, 4 * longest())}
        took, tokens = {name: [] for name in sides}, {}
        for number in range(rounds + 1):  # the first one warms up
            for name in list(sides) if number % 2 == 0 else list(sides)[::-1]:
                seconds, tokens[name] = train(SIZES[size], *sides[name], 2 if options.quick else 6)
                took[name].append(seconds)
        figures = [
            ratio("processor time of a step, parts / fixed", took["parts"][1:], took["fixed"][1:]),
            ratio("tokens computed, parts / fixed", [tokens["parts"]], [tokens["fixed"]]),
        ]
        show(f"steps of {ROWS} rows of different lengths, {size}", figures, options.json)


def rows(count):
    return [
        {"prompt": f"{n} ", "completion": " " + tiny.sentence(n, LONG if n % 8 == 0 else 4 + n % 9)}
        for n in range(count)
    ]


def longest():
    tokenizer = tiny.tokenizer()
    return max(len(tokenizer(r["prompt"] + r["completion"])["input_ids"]) + 1 for r in rows(64))


def train(shape, batch, max_tokens, steps):
    """Processor seconds of some steps, and the tokens that the model was given."""
    with tempfile.TemporaryDirectory() as folder:
        model, given = tiny.model(**shape), []
        trainer = SFTTrainer(
            model,
            SFTConfig(
                folder,
                per_device_train_batch_size=batch,
                gradient_accumulation_steps=ROWS // batch,
                max_steps=steps,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                logging_strategy="no",
            ),
            train_dataset=Dataset.from_list(rows(2 * ROWS)),
            processing_class=tiny.tokenizer(),
            peft_config=LoraConfig(r=8, target_modules="all-linear"),
        )
        if max_tokens is not None:
            compute_in_parts(trainer, max_tokens)
        embed = trainer.model.get_input_embeddings()
        embed.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0].numel()))
        started = time.process_time()
        trainer.train()
        return time.process_time() - started, sum(given)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
