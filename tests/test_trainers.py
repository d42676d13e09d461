"""Each kind of trainer: sliced as plain TRL, stopped and resumed, killed, cloned."""

import multiprocessing
import os
import signal
import sys

import pytest
import tiny
import torch
from oracle import assert_same, plain, sliced
from test_ops import at

from rapidfire_jupyter import (
    Experiment,
    List,
    RFConfig,
    RFDistillationConfig,
    RFDPOConfig,
    RFGridSearch,
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
            ), tiny.grpo_rows(24)
        case "ORPO":
            from trl.experimental.orpo import ORPOConfig

            args = RFConfig(ORPOConfig, **COMMON, num_train_epochs=2, max_length=64)
            return RFModelConfig("tiny", training_args=args, **common), tiny.dpo_rows(14)
        case "CPO":
            from trl.experimental.cpo import CPOConfig

            args = RFConfig(CPOConfig, **COMMON, num_train_epochs=2, max_length=64)
            return RFModelConfig("tiny", training_args=args, **common), tiny.dpo_rows(14)
        case "GKD":
            from trl.experimental.gkd import GKDConfig

            args = RFConfig(GKDConfig, **COMMON, lmbda=0.5, max_new_tokens=6)
            return RFModelConfig(
                "tiny", training_args=args, teacher_model=teacher, **common
            ), tiny.sft_rows(14)
        case "OnlineDPO":
            from trl.experimental.online_dpo import OnlineDPOConfig

            args = RFConfig(OnlineDPOConfig, **{**COMMON, "logging_steps": 2}, max_new_tokens=6)
            return RFModelConfig(
                "tiny", training_args=args, reward_funcs=[tiny.reward_length], **common
            ), tiny.grpo_rows(16)  # a short last batch is logged over other rows after a resume
    raise AssertionError(name)


KINDS = ["SFT", "DPO", "KTO", "Reward", "GRPO", "RLOO", "Distillation"]
OTHERS = ["ORPO", "CPO", "GKD", "OnlineDPO"]  # classes of trl.experimental


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS + OTHERS)
def test_every_kind_of_trainer_equals_plain_trl(experiment, tmp_path, teacher, name):
    config, rows = kind_of(name, teacher)
    exp = experiment()

    exp.run_fit([config, config.copy(seed=7)], tiny.create_model, rows, num_chunks=3, block=True)

    for run in exp.runs:
        assert run.status == "completed", run.trace
        assert run.exact, run.exact
        assert_same(sliced(run), plain(run, tmp_path / f"plain{run.id}"), f"{name} run {run.id}")


def one_run(root, name, teacher):
    """One experiment of one kind, in which run 1 trains without a stop."""
    config, rows = kind_of(name, teacher)
    exp = Experiment("exp", root=root)
    exp.run_fit(config, tiny.create_model, rows, num_chunks=3, checkpoint_seconds=0.001, block=True)
    return exp


def _killed(root, name, teacher, path):
    sys.path[:] = path
    import torch

    torch.set_num_threads(1)
    from rapidfire_jupyter import storage

    done = []

    def watch(here, target):
        if here == "rename:after" and target.name.startswith("checkpoint-"):
            done.append(target.name)
            if len(done) == 2:
                os.kill(os.getpid(), signal.SIGKILL)

    storage.watcher = watch
    one_run(root, name, teacher)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS + OTHERS)
def test_every_kind_of_trainer_is_stopped_killed_and_cloned_exactly(tmp_path, teacher, name):
    context = multiprocessing.get_context("forkserver")
    whole = one_run(tmp_path / "whole", name, teacher)
    ended = sliced(whole.run(1))
    whole.end()

    config, rows = kind_of(name, teacher)
    cut = Experiment("exp", root=tmp_path / "cut")
    stopped = at(cut, 1, 2, lambda: cut.stop(1))
    cloned = at(cut, 1, 4, lambda: cut.clone(1, {}, warm=True))
    cut.run_fit(config, tiny.create_model, rows, num_chunks=3, block=True)
    stopped[0].wait(60)
    cut.resume(1).wait(60)
    cut.wait()
    cloned[0].wait(60)
    cut.wait()

    child = context.Process(target=_killed, args=(tmp_path / "killed", name, teacher, sys.path))
    child.start()
    child.join(180)
    killed = one_run(tmp_path / "killed", name, teacher)

    assert child.exitcode == -signal.SIGKILL
    for what, run in (
        ("stopped", cut.run(1)),
        ("cloned", cut.run(2)),
        ("killed", killed.run(1)),
    ):
        assert run.status == "completed", run.trace
        assert run.exact, run.exact
        assert_same(sliced(run), ended, f"{name} {what}")
    cut.end()
    killed.end()


@pytest.mark.slow
def test_what_a_restart_cannot_repeat_is_told_before_the_start(experiment):
    from trl import BEMACallback

    exp = experiment()
    moving = {"sync_ref_model": True, "ref_model_sync_steps": 1}
    args = RFDPOConfig(**COMMON, max_steps=3, **moving)
    config = RFModelConfig(
        "tiny",
        training_args=args,
        callbacks=[BEMACallback(update_freq=2)],
    )
    before = tiny.model().state_dict()

    exp.run_fit(config, tiny.create_model, tiny.dpo_rows(12), num_chunks=1, block=True)

    assert exp.run(1).status == "completed", exp.run(1).trace
    notes = next(e.data["notes"] for e in exp.events if e.kind == "run_prepared")
    assert any("sync_ref_model moves its reference" in note for note in notes), notes
    assert any("callback BEMACallback has no state()" in note for note in notes), notes
    base = exp._fit.executor._bases[0].model.state_dict()
    assert all((base[name] == value).all() for name, value in before.items())


@pytest.mark.slow
def test_mixed_trainers_in_one_experiment_equal_plain_trl(experiment, tmp_path, teacher):
    dpo, rows = kind_of("DPO", teacher)
    reward, _ = kind_of("Reward", teacher)
    grpo, _ = kind_of("GRPO", teacher)
    exp = experiment()

    exp.run_fit(
        [RFGridSearch(dpo, "DPO"), RFGridSearch(reward, "Reward"), RFGridSearch(grpo, "GRPO")],
        tiny.create_model,
        rows[:8],
        num_chunks=2,
        block=True,
    )

    assert [run.facts.trainer_type for run in exp.runs] == ["DPO", "Reward", "GRPO"]
    for run in exp.runs:
        assert run.status == "completed", run.trace
        assert_same(sliced(run), plain(run, tmp_path / f"plain{run.id}"), f"run {run.id}")


@pytest.mark.slow
def test_reward_models_by_name_draw_their_heads_from_their_seeds_on_one_base(experiment, tmp_path):
    folder = tmp_path / "causal"
    tiny.model().save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    config, rows = kind_of("Reward", None)
    config = config.copy(model_name=str(folder), peft_config=lora(), seed=List([1, 2]))
    exp = experiment()

    exp.run_fit(RFGridSearch(config, "Reward"), None, rows, num_chunks=2, block=True)

    assert exp._fit.executor.facts()["bases"] == 1
    for run in exp.runs:
        assert run.status == "completed", run.trace
        assert_same(sliced(run), plain(run, tmp_path / f"plain{run.id}"), f"run {run.id}")
    first, second = (r["loss"] for run in exp.runs for r in run.rows if r["step"] == 1)
    assert first != second
    model, _ = exp.run(1).load_model()
    assert model(input_ids=torch.arange(4)[None]).logits.shape == (1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["messages", "sharegpt", "prompt"])
def test_answers_of_distillation_are_judged_by_what_its_conversations_hold(
    experiment, teacher, layout
):
    config, _ = kind_of("Distillation", teacher)
    turns = [(row["prompt"], row["completion"]) for row in tiny.sft_rows(12)]
    rows = {
        "messages": [
            {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}
            for q, a in turns
        ],
        "sharegpt": [
            {"conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]}
            for q, a in turns
        ],
        "prompt": [{"prompt": q} for q, _ in turns],  # says nothing of the answer
    }[layout]
    exp = experiment()

    exp.run_fit(
        config, tiny.create_model, rows[:8], rows[8:], num_chunks=1, eval_budget=1.0, block=True
    )

    run = exp.run(1)
    assert run.status == "completed", run.trace
    assert any("eval_bleu" in row for row in run.rows) is (layout != "prompt")
    peek = run.peek().rows[0][0][0]
    assert turns[0][1].strip() not in peek  # the trainer is given prompts only
