"""Slicing is invisible: every run ends as plain TRL ends, run alone in a fresh process."""

import pytest
import tiny
from oracle import assert_same, plain, sliced

from rapidfire_jupyter import (
    List,
    RFDPOConfig,
    RFGRPOConfig,
    RFLoraConfig,
    RFModelConfig,
    RFSFTConfig,
)


def lora(**given):
    return RFLoraConfig(
        **{"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], **given}
    )


def sft(peft=None, model=None, **given):
    args = {"learning_rate": 1e-2, "per_device_train_batch_size": 4, "logging_steps": 1, **given}
    return RFModelConfig(
        "tiny", peft_config=peft or lora(), training_args=RFSFTConfig(**args), **(model or {})
    )


def check(exp, folder):
    for run in exp.runs:
        assert run.status == "completed", run.trace
        assert run.exact, run.exact
        assert_same(
            sliced(run), plain(run, folder / f"plain{run.id}"), f"run {run.id} ({run.name})"
        )


MIXED = [
    sft(lora(r=4, lora_dropout=0.1), num_train_epochs=2, logging_steps=3),
    sft(lora(r=8, target_modules="all-linear"), num_train_epochs=2, warmup_steps=3),
    sft(
        lora(r=16, lora_dropout=0.2),
        per_device_train_batch_size=5,
        gradient_accumulation_steps=2,
        logging_steps=10,
    ),
    sft(bf16=True, per_device_train_batch_size=2, lr_scheduler_type="cosine", warmup_ratio=0.1),
    sft(
        model={"model_kwargs": {"dropout": 0.1}}, gradient_accumulation_steps=3, num_train_epochs=2
    ),
    sft(
        lora(lora_dropout=0.1),
        model={"model_kwargs": {"dtype": "bfloat16"}, "seed": 7},
        max_steps=9,
    ),
]


@pytest.mark.parametrize("num_chunks", [1, 3, 8])
def test_six_mixed_runs_equal_plain_trl(experiment, tmp_path, num_chunks):
    exp = experiment()

    exp.run_fit(MIXED, tiny.create_model, tiny.sft_rows(101), num_chunks=num_chunks, block=True)

    check(exp, tmp_path)


def test_batches_made_ahead_by_worker_processes_equal_plain_trl_after_a_stop(experiment, tmp_path):
    exp = experiment()
    config = sft(
        lora(r=4, lora_dropout=0.1),
        per_device_train_batch_size=2,
        logging_steps=1,
        dataloader_num_workers=1,
        dataloader_prefetch_factor=3,
    )

    exp.run_fit(config, tiny.create_model, tiny.sft_rows(16), num_chunks=2, slice_steps=1)
    exp.run(1).stop().wait(60)
    exp.run(1).resume().wait(60)
    exp.wait(120)

    check(exp, tmp_path)


def test_all_trl_defaults_equal_plain_trl(experiment, tmp_path):
    exp = experiment()
    config = RFModelConfig("tiny", peft_config=RFLoraConfig(target_modules=["q_proj"]))

    exp.run_fit(
        [config, config.copy(seed=1)],
        tiny.create_model,
        tiny.sft_rows(21),
        num_chunks=2,
        block=True,
    )

    check(exp, tmp_path)


def test_dpo_and_grpo_beside_each_other_equal_plain_trl(experiment, tmp_path):
    dpo = RFModelConfig(
        "tiny",
        peft_config=lora(lora_dropout=0.1),
        training_args=RFDPOConfig(
            learning_rate=1e-2,
            per_device_train_batch_size=2,
            beta=List([0.1, 0.5]),
            logging_steps=1,
            max_length=32,
        ),
    )
    exp = experiment("dpo")
    exp.run_fit(dpo, tiny.create_model, tiny.dpo_rows(10), num_chunks=3)
    grpo = RFModelConfig(
        "tiny",
        peft_config=lora(),
        reward_funcs=[tiny.reward_length],
        training_args=RFGRPOConfig(
            learning_rate=1e-2,
            per_device_train_batch_size=4,
            num_generations=2,
            num_iterations=List([1, 2]),
            max_completion_length=6,
            logging_steps=1,
            num_train_epochs=2,
        ),
    )
    other = experiment("grpo")
    other.run_fit(grpo, tiny.create_model, tiny.grpo_rows(8), num_chunks=2)

    exp.wait()
    other.wait()

    check(exp, tmp_path / "dpo")
    check(other, tmp_path / "grpo")


def test_evaluation_best_model_and_early_stopping_equal_plain_trl(experiment, tmp_path):
    from transformers import EarlyStoppingCallback

    best = {
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_loss",
        "num_train_epochs": 3,
    }
    stopping = {"model": {"callbacks": [EarlyStoppingCallback(early_stopping_patience=1)]}}
    exp = experiment()

    exp.run_fit(
        [
            sft(eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2, **best),
            sft(eval_strategy="epoch", save_strategy="epoch", **best),
            sft(eval_strategy="chunk", save_strategy="chunk", **best),
            sft(
                learning_rate=1.0,
                eval_strategy="steps",
                eval_steps=1,
                save_strategy="steps",
                save_steps=1,
                **best,
                **stopping,
            ),
            sft(eval_strategy="steps", eval_steps=3, eval_on_start=True),
            sft(
                lora(lora_dropout=0.1),
                eval_strategy="epoch",
                lr_scheduler_type="reduce_lr_on_plateau",
                lr_scheduler_kwargs={"patience": 0},
                metric_for_best_model="eval_loss",
                num_train_epochs=3,
            ),
        ],
        tiny.create_model,
        tiny.sft_rows(21),
        tiny.sft_rows(40)[30:],
        num_chunks=3,
        block=True,
    )

    check(exp, tmp_path)
    assert exp.runs[3].facts.step < exp.runs[3].facts.total_steps  # it did stop early


def test_packing_truncation_and_text_equal_plain_trl(experiment, tmp_path):
    exp = experiment()

    exp.run_fit(
        [
            sft(packing=True, max_length=32, num_train_epochs=2),
            sft(max_length=12, num_train_epochs=2),  # drops rows whose prompt fills it
            sft(completion_only_loss=False, weight_decay=0.1, optim="sgd"),
            sft(model={"formatting_func": as_text}),
            sft(model={"formatting_func": as_turns}),
        ],
        tiny.create_model,
        tiny.sft_rows(30),
        num_chunks=3,
        block=True,
    )

    check(exp, tmp_path)
    dropped = [e.data["dropped"] for e in exp.events if e.kind == "run_prepared"]
    assert dropped[1] > 0 and dropped[2] == 0


def as_text(row):
    return row["prompt"] + row["completion"]


def as_turns(row):
    return {
        "prompt": [{"role": "user", "content": row["prompt"]}],
        "completion": [{"role": "assistant", "content": row["completion"]}],
    }


def test_instruction_rows_are_mapped_and_equal_plain_trl(experiment, tmp_path):
    exp, rows = experiment(), tiny.sft_rows(14)
    instructions = [
        {
            "instruction": row["prompt"],
            "input": "" if n % 2 else "a note",
            "output": row["completion"],
        }
        for n, row in enumerate(rows)
    ]

    exp.run_fit(
        [sft(), sft(lora(lora_dropout=0.1))],
        tiny.create_model,
        instructions[:12],
        instructions[12:],
        num_chunks=3,
        block=True,
    )

    check(exp, tmp_path)
    text = "".join(piece for row in exp.run(1).peek().rows for piece, _ in row)
    assert "a note" in text and "<|user|>" in text and "<|assistant|>" in text
