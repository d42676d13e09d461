"""One run rehearses for all whose steps are alike; the others rehearse themselves."""

import pytest
import tiny

from rapidfire_jupyter import RFLoraConfig, RFModelConfig, RFSFTConfig
from rapidfire_jupyter.errors import RapidFireError
from rapidfire_jupyter.training import coroutine, watching

ROWS = tiny.sft_rows(12)


def config(r=4, alpha=8, dropout=0.0, targets=("q_proj",), **given):
    args = {"per_device_train_batch_size": 2, "num_train_epochs": 1, "logging_steps": 1, **given}
    return RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(
            r=r, lora_alpha=alpha, lora_dropout=dropout, target_modules=list(targets)
        ),
        training_args=RFSFTConfig(**args),
    )


@pytest.fixture
def rehearsed(monkeypatch):
    """The learning rates and batch sizes of the trainers that have rehearsed."""
    found = []
    original = watching.rehearse

    def rehearse(trainer, *given):
        args = trainer.args
        found.append((args.learning_rate, args.per_device_train_batch_size))
        return original(trainer, *given)

    monkeypatch.setattr(watching, "rehearse", rehearse)
    return found


def test_runs_that_differ_in_numbers_only_rehearse_once(experiment, rehearsed):
    exp = experiment()
    exp.run_fit(
        [
            config(learning_rate=1e-2),
            config(learning_rate=1e-3, alpha=16, seed=7, weight_decay=0.1),
            config(learning_rate=1e-3, lr_scheduler_type="cosine", warmup_steps=2),
        ],
        tiny.create_model,
        ROWS,
        num_chunks=2,
    )
    exp.wait()

    assert rehearsed == [(1e-2, 2)]
    assert [run.status for run in exp.runs] == ["completed"] * 3
    first, *others = [run.memory for run in exp.runs]
    assert first is not None
    assert first.activations > 0
    assert {memory.activations for memory in others} == {first.activations}


@pytest.mark.parametrize(
    "other",
    [
        {"r": 8},
        {"dropout": 0.1},
        {"targets": ("q_proj", "v_proj")},
        {"per_device_train_batch_size": 4},
        {"max_length": 16},
        {"neftune_noise_alpha": 5},
    ],
    ids=str,
)
def test_a_run_with_other_shapes_or_draws_rehearses_itself(experiment, rehearsed, other):
    exp = experiment()
    exp.run_fit([config(), config(**other)], tiny.create_model, ROWS, num_chunks=1)
    exp.wait()

    assert len(rehearsed) == 2


def test_a_rehearsal_that_fails_is_no_other_run_s(experiment, rehearsed):
    def collator(rows):
        raise ValueError("rows that do not fit together")

    def broken(rate):
        made = config(learning_rate=rate)
        return RFModelConfig(**{**made.given, "data_collator": collator})

    exp = experiment()
    exp.run_fit([broken(1e-2), broken(1e-3)], tiny.create_model, ROWS, num_chunks=1)
    exp.wait()

    assert [rate for rate, _ in rehearsed] == [1e-2, 1e-3]
    assert [run.status for run in exp.runs] == ["failed"] * 2
    assert all("do not fit together" in run.error for run in exp.runs)


def test_an_adapter_that_does_not_reach_the_model_is_refused_by_every_run(
    experiment, rehearsed, monkeypatch
):
    def refused(model):
        raise RapidFireError("the adapter does not reach the model's forward")

    monkeypatch.setattr(coroutine, "check_adapter_reaches", refused)
    exp = experiment()
    exp.run_fit([config(learning_rate=1e-2), config(learning_rate=1e-3)], tiny.create_model, ROWS)
    exp.wait()

    assert [run.status for run in exp.runs] == ["failed"] * 2
    assert all("does not reach" in run.error for run in exp.runs)
    assert not rehearsed


def test_the_check_that_an_adapter_reaches_the_model_is_made_with_the_rehearsal(
    experiment, monkeypatch
):
    checked = []
    original = coroutine.check_adapter_reaches
    monkeypatch.setattr(
        coroutine, "check_adapter_reaches", lambda model: checked.append(original(model))
    )
    exp = experiment()
    exp.run_fit(
        [config(learning_rate=1e-2), config(learning_rate=1e-3), config(r=8)],
        tiny.create_model,
        ROWS,
    )
    exp.wait()

    assert [run.status for run in exp.runs] == ["completed"] * 3
    assert len(checked) == 2, [(e.run, e.kind) for e in exp.events]
