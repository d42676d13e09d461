"""Each kind of trainer: sliced as plain TRL, stopped and resumed, killed, cloned."""

import pytest
import tiny
from oracle import assert_same, plain, sliced

from rapidfire_jupyter import (
    RFDistillationConfig,
    RFDPOConfig,
    RFGRPOConfig,
    RFKTOConfig,
    RFLoraConfig,
    RFModelConfig,
    RFRewardConfig,
    RFRLOOConfig,
    RFSFTConfig,
)

COMMON = {"learning_rate": 1e-2, "per_device_train_batch_size": 4, "logging_steps": 1}
GENERATING = {"max_completion_length": 6, "num_train_epochs": 2}


def lora(**given):
    return RFLoraConfig(
        **{
            "r": 4,
            "lora_alpha": 8,
            "lora_dropout": 0.1,
            "target_modules": ["q_proj", "v_proj"],
            **given,
        }
    )


@pytest.fixture(scope="session")
def teacher(tmp_path_factory):
    """A folder with a larger tiny model."""
    folder = tmp_path_factory.mktemp("teacher")
    tiny.model(hidden=48, layers=1, seed=5).save_pretrained(folder)
    return str(folder)


def kind_of(name, teacher):
    """A config of a trainer kind, and rows for it."""
    common = {"peft_config": lora()}
    match name:
        case "SFT":
            return RFModelConfig(
                "tiny", training_args=RFSFTConfig(**COMMON, num_train_epochs=2), **common
            ), tiny.sft_rows(14)
        case "DPO":
            return RFModelConfig(
                "tiny", training_args=RFDPOConfig(**COMMON, num_train_epochs=2), **common
            ), tiny.dpo_rows(14)
        case "KTO":
            return RFModelConfig(
                "tiny", training_args=RFKTOConfig(**COMMON, num_train_epochs=2), **common
            ), tiny.kto_rows(14)
        case "Reward":
            return RFModelConfig(
                "tiny",
                training_args=RFRewardConfig(**COMMON, num_train_epochs=2),
                peft_config=lora(task_type="SEQ_CLS"),
            ), tiny.dpo_rows(14)
        case "GRPO" | "RLOO":
            args = RFGRPOConfig if name == "GRPO" else RFRLOOConfig
            return RFModelConfig(
                "tiny",
                reward_funcs=[tiny.reward_length],
                training_args=args(**COMMON, **GENERATING, num_generations=2),
                **common,
            ), tiny.grpo_rows(8)
        case "Distillation":
            return RFModelConfig(
                "tiny",
                teacher_model=teacher,
                training_args=RFDistillationConfig(
                    **COMMON, **GENERATING, gradient_accumulation_steps=2
                ),
                **common,
            ), tiny.grpo_rows(16)
    raise AssertionError(name)


KINDS = ["SFT", "DPO", "KTO", "Reward", "GRPO", "RLOO", "Distillation"]


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_trainer_equals_plain_trl(experiment, tmp_path, teacher, name):
    config, rows = kind_of(name, teacher)
    exp = experiment()

    exp.run_fit([config, config.copy(seed=7)], tiny.create_model, rows, num_chunks=3, block=True)

    for run in exp.runs:
        assert run.status == "completed", run.trace
        assert run.exact, run.exact
        assert_same(sliced(run), plain(run, tmp_path / f"plain{run.id}"), f"{name} run {run.id}")
