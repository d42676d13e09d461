"""What a frozen reference says is computed once for runs that meet the same batches."""

from typing import ClassVar

import pytest
import tiny
from oracle import assert_same, plain, sliced

from rapidfire_jupyter import (
    List,
    RFDPOConfig,
    RFGRPOConfig,
    RFKTOConfig,
    RFLoraConfig,
    RFModelConfig,
    RFRLOOConfig,
    RFSFTConfig,
)

ARGS = {"per_device_train_batch_size": 4, "logging_steps": 1}


def lora(**given):
    return RFLoraConfig(**{"r": 4, "target_modules": ["q_proj", "v_proj"], **given})


def dpo(peft_config, **given):
    args = RFDPOConfig(**ARGS, **given)
    return RFModelConfig("tiny", peft_config=peft_config, training_args=args)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["DPO", "KTO", "all weights"])
def test_runs_on_one_base_share_what_the_reference_says_bit_for_bit(experiment, tmp_path, kind):
    config, rows = {
        "DPO": (dpo(lora(lora_dropout=0.1), learning_rate=List([1e-2, 1e-3])), tiny.dpo_rows(12)),
        "KTO": (
            RFModelConfig(
                "tiny",
                peft_config=lora(r=List([2, 4])),
                training_args=RFKTOConfig(**ARGS, learning_rate=1e-2),
            ),
            tiny.kto_rows(12),
        ),
        "all weights": (dpo(None, learning_rate=List([1e-3, 1e-4])), tiny.dpo_rows(12)),
    }[kind]
    exp = experiment()

    exp.run_fit(config, tiny.create_model, rows, num_chunks=2, block=True)

    assert exp._fit.executor.references.reused >= 9  # of the second run: 9 steps, of KTO twice
    for run in exp.runs:
        assert run.status == "completed", run.trace
        assert_same(sliced(run), plain(run, tmp_path / f"plain{run.id}"), f"run {run.id}")


@pytest.mark.slow
def test_what_depends_on_a_run_is_not_shared(experiment, tmp_path):
    exp = experiment()

    exp.run_fit(
        [
            dpo(lora(init_lora_weights="pissa"), learning_rate=1e-2),
            dpo(lora(init_lora_weights="pissa", r=8), learning_rate=1e-2),
            dpo(lora(), learning_rate=1e-2, bf16=True),
            dpo(lora(), learning_rate=1e-2, bf16=False),
        ],
        tiny.create_model,
        tiny.dpo_rows(12),
        num_chunks=2,
        block=True,
    )

    assert exp._fit.executor.references.reused <= 1  # rehearsals have no mixed precision yet
    for run in exp.runs:
        assert run.status == "completed", run.trace
        assert_same(sliced(run), plain(run, tmp_path / f"plain{run.id}"), f"run {run.id}")


@pytest.mark.slow
def test_a_dropout_in_the_reference_stays_each_runs_own(experiment, tmp_path):
    exp = experiment()
    config = dpo(lora(), learning_rate=List([1e-2, 1e-3]))

    exp.run_fit(
        config.copy(model_kwargs={"dropout": 0.2}),
        tiny.create_model,
        tiny.dpo_rows(12),
        num_chunks=2,
        block=True,
    )

    for run in exp.runs:
        assert_same(sliced(run), plain(run, tmp_path / f"plain{run.id}"), f"run {run.id}")


def parts(trainer):
    return {p.data_ptr() for p in trainer.ref_model.parameters()}


class Where(tiny.Callback):
    """Notes where a run's reference lies."""

    found: ClassVar = []

    def on_train_begin(self, args, state, control, **kwargs):
        import inspect

        frames = (info.frame.f_locals.get("self") for info in inspect.stack())
        Where.found.append(next(parts(one) for one in frames if hasattr(one, "ref_model")))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
@pytest.mark.parametrize("by_name", [True, False])
def test_grpo_and_rloo_of_all_weights_share_one_reference(experiment, tmp_path, kind, by_name):
    folder = tmp_path / "base"
    tiny.model().save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    Where.found.clear()
    args = RFGRPOConfig if kind == "GRPO" else RFRLOOConfig
    config = RFModelConfig(
        str(folder),
        reward_funcs=[tiny.reward_length],
        callbacks=[Where],
        training_args=args(
            **ARGS, beta=0.1, learning_rate=List([1e-3, 1e-4]), num_generations=2,
            max_completion_length=6,
        ),
    )  # fmt: skip
    exp = experiment()

    exp.run_fit(config, None if by_name else loaded, tiny.grpo_rows(8), num_chunks=2, block=True)

    for run in exp.runs:
        assert run.status == "completed", run.trace
        assert run.exact, run.exact
    assert Where.found[0] == Where.found[1]
    bases = exp._fit.executor._bases
    on_base = {p.data_ptr() for p in bases[0].model.parameters()}
    assert len(bases) == 1 and (Where.found[0] == on_base) is by_name
    for run in exp.runs:
        assert_same(sliced(run), plain(run, tmp_path / f"plain{run.id}"), f"run {run.id}")


def loaded(config):
    """A create_model_fn that loads by name, as the user could have changed it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    name = config["model_name"]
    return AutoModelForCausalLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)


def test_a_reference_that_is_loaded_by_name_needs_one(experiment):
    args = RFRLOOConfig(num_generations=2, max_completion_length=4)  # its beta is 0.05
    exp = experiment()

    exp.run_fit(
        RFModelConfig("tiny", training_args=args, reward_funcs=[tiny.reward_length]),
        tiny.create_model,
        tiny.grpo_rows(8),
        num_chunks=1,
        block=True,
    )

    assert "beta=0.05 needs a reference, which TRL's RLOO loads by the model's" in exp.run(1).error


@pytest.mark.slow
@pytest.mark.parametrize("precision", [False, True])
def test_an_evaluation_before_training_is_computed_once_for_plain_lora(
    experiment, tmp_path, precision
):
    exp = experiment()
    adapters = [
        lora(lora_dropout=0.1),
        lora(r=8, target_modules="all-linear"),
        lora(r=2, use_rslora=True),
        lora(use_dora=True),
        lora(init_lora_weights="pissa"),
        lora(init_lora_weights=False),  # B is not zero
    ]
    args = RFSFTConfig(
        **ARGS,
        per_device_eval_batch_size=4,
        learning_rate=1e-2,
        eval_on_start=True,
        eval_strategy="epoch",
        num_train_epochs=1,
        bf16=precision,
    )
    rows = tiny.sft_rows(24)

    exp.run_fit(
        RFModelConfig("tiny", peft_config=List(adapters), training_args=args),
        tiny.create_model,
        rows[:12],
        rows[12:],
        num_chunks=2,
        generate_rows=0,
        block=True,
    )

    assert exp._fit.executor.references.reused == 2 * 3  # runs after the first, batches
    for run in exp.runs:
        assert run.status == "completed", run.trace
        assert_same(sliced(run), plain(run, tmp_path / f"plain{run.id}"), f"run {run.id}")
