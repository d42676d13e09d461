"""The plain TRL script of a run holds the user's functions and objects, or says what it lacks."""

import dataclasses
import functools
import runpy

import pytest
import tiny
import torch
from oracle import assert_same, plain, sliced

from rapidfire_jupyter import (
    RFDistillationConfig,
    RFGRPOConfig,
    RFLoraConfig,
    RFModelConfig,
    RFSFTConfig,
)
from rapidfire_jupyter.training.source import Writer

COMMON = {"learning_rate": 1e-2, "per_device_train_batch_size": 4, "logging_steps": 1}


def lora():
    return RFLoraConfig(r=4, target_modules=["q_proj"])


class Judge:
    """A reward object: what it gives depends on its fields."""

    def __init__(self, modulus):
        self.modulus = modulus
        self.__name__ = f"judge{modulus}"

    def __call__(self, completions, **kwargs):
        return [float(len(c) % self.modulus) for c in completions]

    def halved(self, completions, **kwargs):
        return [score / 2 for score in self(completions)]


JUDGE = Judge(5)  # an object that a module holds


def scaled(completions, scale, **kwargs):
    return [scale * len(c) for c in completions]


def factor_reward(factor):
    def reward(completions, **kwargs):
        return [factor * float(len(c) % 3) for c in completions]

    return reward


@dataclasses.dataclass
class Pad:
    """A collator with a field, and what the trainer's own does."""

    tokenizer: object
    multiple: int = 8

    def __call__(self, rows):
        from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

        rows = [{k: v for k, v in row.items() if k != "rapidfire_row"} for row in rows]
        return DataCollatorForLanguageModeling(self.tokenizer.pad_token_id)(rows)


@dataclasses.dataclass
class Packed:
    """A dataclass that keeps more than its fields, as BitsAndBytesConfig does."""

    name: str

    def __init__(self, name="packed", bits=8):
        self.name, self._bits = name, bits


def test_what_a_dataclass_keeps_beside_its_fields_is_in_the_script(tmp_path):
    writer = Writer(tmp_path)

    assert writer.value(Packed("other")) == "Packed(name='other')"
    assert "_bits=4" in writer.value(Packed(bits=4))


class Count(tiny.Callback):
    """A callback without state(), whose fields decide what it does."""

    def __init__(self, stop):
        self.stop = stop

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop |= state.global_step >= self.stop


def fit(exp, config, rows, create=tiny.create_model):
    exp.run_fit([config, config.copy(seed=7)], create, rows, num_chunks=2, block=True)
    run = exp.run(1)
    assert run.status == "completed", run.trace
    return run


def test_reward_objects_are_in_the_script(experiment, tmp_path):
    config = RFModelConfig(
        "tiny",
        peft_config=lora(),
        reward_funcs=[
            tiny.reward_length,
            JUDGE,
            Judge(4),
            Judge(3).halved,
            factor_reward(2.0),
        ],
        training_args=RFGRPOConfig(**COMMON, num_generations=2, max_completion_length=6),
    )

    run = fit(experiment(), config, tiny.grpo_rows(8))

    script = run.script()
    assert "from tiny import reward_length" in script
    assert "from test_script import JUDGE" in script
    assert_same(sliced(run), plain(run, tmp_path / "plain"))


def test_a_teacher_by_name_is_in_the_script(experiment, tmp_path):
    tiny.model(hidden=48, layers=1, seed=5).save_pretrained(tmp_path / "teacher")
    config = RFModelConfig(
        "tiny",
        peft_config=lora(),
        teacher_model=str(tmp_path / "teacher"),
        training_args=RFDistillationConfig(**COMMON, max_completion_length=6),
    )

    run = fit(experiment(), config, tiny.grpo_rows(8))

    assert f"teacher_model={str(tmp_path / 'teacher')!r}" in run.script()
    assert_same(sliced(run), plain(run, tmp_path / "plain"))


def test_what_has_no_source_is_a_named_place_to_fill_in(experiment, tmp_path):
    config = RFModelConfig(
        "tiny",
        peft_config=lora(),
        teacher_model=tiny.model(hidden=48, layers=1, seed=5),
        training_args=RFDistillationConfig(**COMMON, max_completion_length=6),
    )
    run = fit(experiment(), config, tiny.grpo_rows(8))

    script = tmp_path / "script.py"
    script.write_text(run.script())

    with pytest.raises(NotImplementedError, match=r"teacher_model: a transformers.*put it where"):
        runpy.run_path(str(script))


def test_tokenizers_collators_and_callbacks_are_in_the_script(experiment, tmp_path, capfd):
    config = RFModelConfig(
        "tiny",
        peft_config=lora(),
        tokenizer=tiny.tokenizer(),
        data_collator=Pad(tiny.tokenizer()),
        callbacks=[Count(3), functools.partial(Count, 9)],
        training_args=RFSFTConfig(**COMMON, num_train_epochs=2),
    )

    run = fit(experiment(), config, tiny.sft_rows(16))
    capfd.readouterr()
    theirs = plain(run, tmp_path / "plain")

    assert run.facts.step == 3
    assert_same(sliced(run), theirs)


def test_making_a_script_shows_no_bars(experiment, capfd):
    run = fit(
        experiment(),
        RFModelConfig("tiny", peft_config=lora(), training_args=RFSFTConfig(**COMMON)),
        tiny.sft_rows(16),
    )
    capfd.readouterr()

    run.script()

    assert capfd.readouterr() == ("", "")


def written(tmp_path, *values):
    """What values are when their source is run."""
    writer = Writer(tmp_path)
    texts = [writer.value(value, f"value {n}") for n, value in enumerate(values)]
    space = {"torch": torch}
    source = "\n".join([*writer.imports, *writer.sources, f"made = [{', '.join(texts)}]"])
    exec(source, space)
    return space["made"]


def test_values_are_written_so_that_they_are_read_back_the_same(tmp_path):
    import numpy as np
    from transformers import GenerationConfig

    values = [
        {"a": [1, (2,), (), None, float("inf")], 3: {4}, "b": np.float64(0.5)},
        torch.bfloat16,
        tmp_path,
        b"x",
    ]

    *made, generation = written(tmp_path, *values, GenerationConfig(max_length=7))

    assert made == values
    assert generation.to_dict() == GenerationConfig(max_length=7).to_dict()


def test_two_functions_of_one_name_are_not_taken_for_each_other(tmp_path):
    writer = Writer(tmp_path)

    first = writer.value(factor_reward(1.0), "reward_funcs")
    second = writer.value(factor_reward(2.0), "reward_funcs")

    assert first == "reward"
    assert second.startswith("fill_in('reward_funcs: factor of reward, beside another one")


def test_secrets_are_not_in_a_script(tmp_path):
    made = Writer(tmp_path).value({"token": "hf_secret", "revision": "main"})

    assert made == "{'token': os.environ.get(\"HF_TOKEN\"), 'revision': 'main'}"
