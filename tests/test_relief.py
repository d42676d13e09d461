"""Memory runs out: that run alone goes on with smaller micro-batches, and says so."""

import functools
import multiprocessing
import os
import signal
import sys

import pytest
import tiny
import torch
from oracle import assert_same, plain, sliced
from scarce import ERRORS, CountSteps, batches, config, small_device
from transformers import TrainerCallback

from rapidfire_jupyter import (
    Experiment,
    RFConfig,
    RFDistillationConfig,
    RFDPOConfig,
    RFGRPOConfig,
    RFKTOConfig,
    RFLoraConfig,
    RFModelConfig,
    RFRLOOConfig,
    RFSFTConfig,
)
from rapidfire_jupyter.changes import modify
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.training import memory, relief


def goes_on(exp, run=1):
    """The steps at which a run was opened again after memory ran out."""
    steps, waits = [], False
    for event in exp.events:
        if event.run == run and event.kind == "run_adjusted":
            waits = True
        elif event.run == run and event.kind == "run_prepared" and waits:
            steps.append(event.data["step"])
            waits = False
    return steps


def needed_by(exp, run, rows):
    """What a run takes on a device with room for it."""
    exp.run_fit(run, small_device, tiny.sft_rows(rows), num_chunks=2, block=True)
    return exp.run(1).memory


def adjusted(exp, run=1):
    return [e.data["changes"] for e in exp.events if e.kind == "run_adjusted" and e.run == run]


@pytest.fixture(autouse=True)
def no_batches_yet():
    batches.update(large=0)


@pytest.mark.parametrize("error", ERRORS)
def test_a_batch_too_large_from_the_start_becomes_smaller_and_stays_exact(
    experiment, tmp_path, error
):
    exp = experiment()
    run = config(5, 2, {"most": 3, "error": error})

    exp.run_fit(run, small_device, tiny.sft_rows(21), num_chunks=2, block=True)

    assert exp.run(1).status == "completed", exp.run(1).trace
    assert adjusted(exp) == [
        {
            "training_args.per_device_train_batch_size": 2,
            "training_args.gradient_accumulation_steps": 5,
        }
    ]
    assert exp.run(1).config["training_args.per_device_train_batch_size"] == 2
    alerts = [e.data["text"] for e in exp.events if e.kind == "alert"]
    assert any("micro-batches of 2 x 5 in place of 5 x 2 rows" in text for text in alerts)
    assert exp.run(1).exact
    assert_same(sliced(exp.run(1)), plain(exp.run(1), tmp_path / "plain"))


class RunOutOnce(TrainerCallback):
    """Memory runs out when the optimizer has written into the weights."""

    def on_optimizer_step(self, args, state, control, **kwargs):
        batches["large"] += 1
        if state.global_step + 1 == 6 and batches["large"] < 7:
            raise torch.OutOfMemoryError("CUDA out of memory.")


def test_in_the_middle_that_run_goes_back_to_its_last_step_and_the_others_are_untouched(experiment):
    other = config(4, 1, {"dropout": 0.1}, name="other")
    alone = experiment("alone")
    alone.run_fit(other, small_device, tiny.sft_rows(24), num_chunks=3, block=True)
    exp = experiment()
    failing = config(4, 1, {"most": 3, "after": 1 + 9}, num_train_epochs=3)  # after a rehearsal

    exp.run_fit([failing, other], small_device, tiny.sft_rows(24), num_chunks=3, block=True)

    run = exp.run(1)
    assert run.status == exp.run(2).status == "completed", run.trace
    assert adjusted(exp)[0]["training_args.per_device_train_batch_size"] == 2
    assert goes_on(exp) == [9] and 9 not in run.facts.chunk_ends
    assert "goes on from step 9 with micro-batches of 2 x 2" in repr(run.exact) and not run.exact
    steps = [row["step"] for row in run.rows if "loss" in row]
    assert steps == list(range(1, 19))  # each step once
    assert_same(sliced(exp.run(2)), sliced(alone.run(1)), "the other run")
    assert exp.run(2).exact


def test_the_last_step_is_the_same_from_where_it_was_and_from_a_checkpoint(experiment):
    ended = []
    for callbacks, seconds in (([], 300), ([CountSteps], 1e-6)):  # saved at each step
        exp = experiment(f"exp-{seconds}")
        batches.update(large=0)
        one = config(4, 2, {"most": 3, "after": 1 + 2 * 4 + 1, "dropout": 0.1}, logging_steps=3)
        one = one.copy(callbacks=callbacks)
        exp.run_fit(
            one,
            small_device,
            tiny.sft_rows(56),
            num_chunks=1,
            slice_steps=1,
            checkpoint_seconds=seconds,
            block=True,
        )
        assert exp.run(1).status == "completed", exp.run(1).trace
        assert adjusted(exp)[0]["training_args.per_device_train_batch_size"] == 2
        assert goes_on(exp) == [4]  # the second micro-batch of step 5 was too large
        ended.append(sliced(exp.run(1)))

    assert_same(*ended)


def test_what_runs_out_in_the_update_goes_back_to_a_checkpoint(experiment):
    exp = experiment()
    one = config(4, 1).copy(callbacks=[RunOutOnce])

    exp.run_fit(one, small_device, tiny.sft_rows(32), num_chunks=2, block=True)

    assert exp.run(1).status == "completed", exp.run(1).trace
    assert goes_on(exp) == [4] and len(adjusted(exp)) == 1


def test_an_evaluation_of_the_trainer_is_done_again_where_it_was(experiment, tmp_path):
    exp = experiment()
    own = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 8}
    one = config(2, 1, {"most": 2, "after": 2, "dropout": 0.1}, **own)

    exp.run_fit(
        one, small_device, tiny.sft_rows(16), tiny.sft_rows(24)[16:], num_chunks=1, block=True
    )

    run = exp.run(1)
    assert run.status == "completed", run.trace
    assert goes_on(exp)[0] == 6  # the third evaluation was too large
    weights, optimizer, rows = sliced(run)
    alone = plain(run, tmp_path / "plain")
    assert_same((weights, optimizer, losses(rows)), (*alone[:2], losses(alone[2])))
    assert [row["step"] for row in rows if "eval_loss" in row] == [2, 4, 6, 8]


def losses(rows):
    """Rows of training, but for those of its end: they tell of one kernel."""
    return [row for row in rows if "loss" in row]


def test_with_the_smallest_micro_batch_it_fails_with_advice_and_the_others_go_on(experiment):
    exp = experiment()

    exp.run_fit(
        [config(2, 1, {"most": 0}), config(2, 1)],
        small_device,
        tiny.sft_rows(8),
        num_chunks=1,
        block=True,
    )

    run = exp.run(1)
    assert run.status == "failed" and exp.run(2).status == "completed"
    assert [c["training_args.per_device_train_batch_size"] for c in adjusted(exp)] == [1]
    assert "OutOfMemoryError" in run.error and "a smaller max_length" in run.error


def test_out_of_memory_in_an_evaluation_halves_that_ones_batch(experiment):
    exp = experiment()
    run = config(2, 1, {"most": 2}, per_device_eval_batch_size=8)

    exp.run_fit(
        run,
        small_device,
        tiny.sft_rows(8),
        tiny.sft_rows(16)[8:],
        num_chunks=2,
        eval_budget=1.0,
        block=True,
    )

    assert exp.run(1).status == "completed", exp.run(1).trace
    assert [list(c.values()) for c in adjusted(exp)] == [[4], [2]]
    assert [row["step"] for row in exp.run(1).rows if "eval_loss" in row] == [2, 4]


def test_dpo_and_grpo_become_smaller_too(experiment):
    exp = experiment()
    dpo = config(4, 1, {"most": 4}, RFDPOConfig, max_length=32)
    exp.run_fit(dpo, small_device, tiny.dpo_rows(8), num_chunks=2, block=True)
    grpo = config(
        4,
        2,
        {"most": 3, "training_only": True},
        RFGRPOConfig,
        num_generations=4,
        steps_per_generation=2,
        max_completion_length=4,
    ).copy(reward_funcs=[tiny.reward_length])
    other = experiment("grpo")
    other.run_fit(grpo, small_device, tiny.grpo_rows(8), num_chunks=2, block=True)

    assert exp.run(1).status == other.run(1).status == "completed", other.run(1).trace
    assert adjusted(exp)[0]["training_args.per_device_train_batch_size"] == 2
    assert adjusted(other)[0] == {
        "training_args.per_device_train_batch_size": 2,
        "training_args.gradient_accumulation_steps": 4,
        "training_args.steps_per_generation": 4,
    }


def generating(rows, times, model, kind=RFGRPOConfig, **given):
    given = {"num_generations": 4, "max_completion_length": 4, **given}
    return config(rows, times, model, kind, **given).copy(reward_funcs=[tiny.reward_length])


@pytest.mark.parametrize("kind", [RFGRPOConfig, RFRLOOConfig])
def test_a_generation_too_large_makes_fewer_completions_at_a_time_for_the_same_steps(
    experiment, tmp_path, kind
):
    exp = experiment()
    one = generating(4, 2, {"most": 4}, kind)

    exp.run_fit(one, small_device, tiny.grpo_rows(8), num_chunks=2, block=True)

    run = exp.run(1)
    assert run.status == "completed", run.trace
    assert adjusted(exp) == [{"training_args.generation_batch_size": 4}]
    alerts = [e.data["text"] for e in exp.events if e.kind == "alert"]
    assert any("generating 4 in place of 8 completions at a time" in text for text in alerts)
    assert run.facts.total_steps == 4 and run.exact
    assert_same(sliced(run), plain(run, tmp_path / "plain"))


def test_a_generation_of_one_prompt_that_is_too_large_fails_with_advice(experiment):
    exp = experiment()

    exp.run_fit(
        generating(4, 1, {"most": 3}), small_device, tiny.grpo_rows(8), num_chunks=2, block=True
    )

    run = exp.run(1)
    assert run.status == "failed" and not adjusted(exp)
    assert "smaller max_completion_length, fewer num_generations" in run.error


@pytest.mark.parametrize(
    ("rows", "times", "given", "changes"),
    [
        (8, 1, {}, {"rows": 4, "times": 2, "generation_batch_size": 4}),
        (2, 8, {}, {"generation_batch_size": 8}),
        (2, 2, {"generation_batch_size": 16}, {"generation_batch_size": 8}),
        (2, 4, {"steps_per_generation": 8}, {"steps_per_generation": 4}),
        (6, 2, {"num_generations": 6}, {"generation_batch_size": 6}),
        (4, 1, {}, {"cache_implementation": "offloaded"}),
        (4, 1, {"cache_implementation": "dynamic"}, None),
        (4, 1, {"use_vllm": True}, None),
    ],
)
def test_a_generation_is_of_whole_groups_and_whole_micro_batches(rows, times, given, changes):
    one = generating(rows, times, None, **given).build()
    names = {"rows": "per_device_train_batch_size", "times": "gradient_accumulation_steps"}

    found = relief.next_relief(one, "generation", False, HAVE)

    expected = changes and {f"training_args.{names.get(k, k)}": v for k, v in changes.items()}
    assert (found and dict(found.changes)) == expected


def distilling(name, rows, times, model, teacher):
    """A trainer that learns from a teacher, or from judged answers, and generates itself."""
    plain_args = {"bf16": False, "report_to": "none"}
    match name:
        case "Distillation":
            kind, data = RFDistillationConfig, tiny.grpo_rows(8)
            plain_args = {"max_completion_length": 4}
        case "GKD":
            from trl.experimental.gkd import GKDConfig

            kind, data = functools.partial(RFConfig, GKDConfig), tiny.sft_rows(8)
            plain_args |= {"lmbda": 1.0, "max_new_tokens": 4}
        case _:
            from trl.experimental.online_dpo import OnlineDPOConfig

            kind, data = functools.partial(RFConfig, OnlineDPOConfig), tiny.grpo_rows(8)
            plain_args |= {"max_new_tokens": 4}
    one = config(rows, times, model, kind, **plain_args)
    beside = {"reward_funcs": [tiny.reward_length]} if name == "OnlineDPO" else {}
    return one.copy(**beside or {"trainer_kwargs": {"teacher_model": teacher}}), data


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    tiny.model(hidden=48, layers=1, seed=5).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(("name", "most"), [("GKD", 2), ("OnlineDPO", 4)])
def test_what_generates_by_micro_batch_has_smaller_ones(experiment, tmp_path, teacher, name, most):
    one, rows = distilling(name, 4, 1, {"most": most}, teacher)
    exp = experiment()

    exp.run_fit(one, small_device, rows, num_chunks=2, block=True)

    run = exp.run(1)
    assert run.status == "completed", run.trace
    assert adjusted(exp) == [
        {
            "training_args.per_device_train_batch_size": 2,
            "training_args.gradient_accumulation_steps": 2,
        }
    ]
    alerts = [e.data["text"] for e in exp.events if e.kind == "alert"]
    summed = any("whose gradients TRL's OnlineDPO adds up" in text for text in alerts)
    assert summed is (name == "OnlineDPO") and run.exact
    assert_same(sliced(run), plain(run, tmp_path / "plain"))


def test_distillation_generates_a_step_at_once_and_fails_with_what_helps(experiment, teacher):
    one, rows = distilling("Distillation", 2, 2, {"most": 3}, teacher)
    exp = experiment()

    exp.run_fit(one, small_device, rows, num_chunks=2, block=True)

    run = exp.run(1)
    assert run.status == "failed" and not adjusted(exp)
    assert "(Distillation generates those of a step at once)" in run.error
    assert "a smaller max_completion_length, fewer rows per step" in run.error
    found = relief.next_relief(one.build(), "generation", False, HAVE)
    assert found.changes == {"training_args.cache_implementation": "offloaded"}
    again = modify(one.build(), found.changes)
    assert relief.next_relief(again, "generation", False, HAVE) is None


def test_distillation_trains_on_smaller_micro_batches_of_what_it_generated(
    experiment, tmp_path, teacher
):
    one, rows = distilling("Distillation", 4, 1, {"most": 3, "training_only": True}, teacher)
    exp = experiment()

    exp.run_fit(one, small_device, rows, num_chunks=2, block=True)

    assert exp.run(1).status == "completed", exp.run(1).trace
    assert adjusted(exp)[0]["training_args.per_device_train_batch_size"] == 2
    assert_same(sliced(exp.run(1)), plain(exp.run(1), tmp_path / "plain"))


def test_an_evaluation_batch_of_completions_is_of_whole_groups():
    one = generating(4, 1, None, per_device_eval_batch_size=12).build()
    found = relief.next_relief(one, "evaluation", False, HAVE)
    smallest = modify(one, found.changes)

    assert dict(found.changes) == {"training_args.per_device_eval_batch_size": 4}
    assert relief.next_relief(smallest, "evaluation", False, HAVE) is None


def cells(root):
    exp = Experiment("exp", root=root)
    exp.run_fit(
        config(4, 2, {"most": 2}), small_device, tiny.sft_rows(24), num_chunks=3, eval_rows=0
    )
    return exp


def _killed(root, path):
    sys.path[:] = path
    torch.set_num_threads(1)
    exp = cells(root)
    exp._opened.log.subscribe(
        lambda e: e.kind == "checkpoint" and os.kill(os.getpid(), signal.SIGKILL)
    )
    exp.wait(60)


def test_a_restart_and_a_clone_know_the_smaller_batch(tmp_path, experiment):
    context = multiprocessing.get_context("forkserver")
    child = context.Process(target=_killed, args=(str(tmp_path), sys.path))
    child.start()
    child.join(120)
    assert child.exitcode == -signal.SIGKILL

    exp = cells(tmp_path)
    clone = exp.clone(1, {"learning_rate": 2e-2}).wait(60)
    exp.wait(120)

    assert [run.status for run in exp.runs] == ["completed"] * 2, exp.run(1).trace
    assert len(adjusted(exp)) == 1 and not adjusted(exp, clone.run_id)
    assert exp.run(clone.run_id).config["training_args.per_device_train_batch_size"] == 2
    assert exp.run(1).exact
    assert_same(sliced(exp.run(1)), plain(exp.run(1), tmp_path / "plain"))
    exp.end()


def test_micro_batches_keep_the_rows_of_a_step():
    pairs = []
    one = config(12, 1).build()
    while (next_one := relief.smaller_micro_batch(one)) is not None:
        values = tuple(next_one.changes.values())
        pairs.append(values)
        one = config(*values).build()

    assert pairs == [(6, 2), (4, 3), (3, 4), (2, 6), (1, 12)]


def test_a_generation_keeps_its_completions():
    one = config(8, 1, kind=RFGRPOConfig, num_generations=4, generation_batch_size=24)

    changes = relief.smaller_micro_batch(
        one.copy(reward_funcs=[tiny.reward_length]).build()
    ).changes

    assert tuple(changes.values()) == (4, 2)  # 24 completions are whole micro-batches of 4 rows


def test_an_error_that_was_caused_by_a_lack_of_memory_counts_and_others_do_not():
    try:
        try:
            raise ERRORS["cpu"]()
        except RuntimeError as error:
            raise ValueError("a reward function failed") from error
    except ValueError as error:
        assert memory.exhausted(error) == "training"

    assert memory.exhausted(RuntimeError("size mismatch")) == ""


HAVE = relief.Means(eight_bit=True, gpu=True, cuda=True, by_name=True, fresh=True)


def test_auto_takes_the_documented_order():
    one, taken = config(4, 1, gradient_checkpointing=False).build(), []
    while (found := relief.next_relief(one, "training", True, HAVE)) is not None:
        taken.append(found.text)
        one = modify(one, found.changes)

    assert taken == [
        "with gradient checkpointing",
        "with an 8-bit optimizer",
        "with activations in host memory",
        "with micro-batches of 2 x 2 in place of 4 x 1 rows",
        "with micro-batches of 1 x 4 in place of 2 x 2 rows",
        "on a base in 4 bit (QLoRA)",
    ]
    trained = relief.Means(eight_bit=True, gpu=False, cuda=False, by_name=True, fresh=False)
    first = relief.next_relief(config(4, 1).build(), "training", True, trained)
    assert "micro-batches" in first.text  # optimizer and base stay once there is a checkpoint


def test_levels_keep_what_was_given():
    given = config(4, 1, gradient_checkpointing=False).build()
    plain_config = RFModelConfig("m", training_args=RFSFTConfig(), peft_config=RFLoraConfig())

    kept = relief.at_level(given, "level1", HAVE)
    third = relief.at_level(plain_config.build(), "level3", HAVE).model

    assert kept == given
    args = third.training_args
    assert (args.optim, args.activation_offloading) == ("adamw_8bit", True)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (1, 8)
    assert third.model_kwargs["quantization_config"]["load_in_4bit"]


def test_a_level_that_needs_a_package_and_an_unknown_one_are_refused_in_the_cell(experiment):
    exp = experiment()
    rows = tiny.sft_rows(8)

    with pytest.raises(ConfigError, match="memory must be one of 'auto', 'level1'"):
        exp.run_fit(config(), small_device, rows, memory="level4")
    with pytest.raises(ConfigError, match="pip install bitsandbytes"):
        relief.at_level(config().build(), "level2", relief.Means(False, True, True, True, True))


def test_a_micro_batch_becomes_one_that_fits_at_once(experiment):
    exp = experiment()
    run = config(8, 1, {"hidden": 64, "layers": 6}, num_train_epochs=1)
    needed = needed_by(exp, run, 16)
    small = experiment("small")

    small.run_fit(
        run,
        small_device,
        tiny.sft_rows(16),
        num_chunks=2,
        device_memory=needed.base + needed.own - int(needed.activations * 0.7),
        block=True,
    )

    assert small.run(1).status == "completed", small.run(1).trace
    sizes = [changes["training_args.per_device_train_batch_size"] for changes in adjusted(small)]
    assert sizes == [2]
    assert small.run(1).exact


def test_kto_keeps_two_rows_for_its_divergence_and_says_whose_it_is():
    one = config(4, 1, kind=RFKTOConfig).build("KTO")

    found = relief.smaller_micro_batch(one)

    assert found.changes["training_args.per_device_train_batch_size"] == 2
    assert "each with a divergence of its own" in found.text
    assert relief.smaller_micro_batch(modify(one, found.changes)) is None
    without = config(2, 1, kind=RFKTOConfig, loss_type="apo_zero_unpaired").build("KTO")
    assert relief.smaller_micro_batch(without).text.endswith("in place of 2 x 1 rows")


def test_a_base_that_does_not_fit_is_no_matter_of_micro_batches(experiment):
    exp = experiment()

    exp.run_fit(
        config(8, 1), small_device, tiny.sft_rows(16), device_memory="10 KB", block=True
    )  # fmt: skip

    error = exp.run(1).error
    assert adjusted(exp) == [] and "weights and states alone are too much: use optim=" in error
    assert "micro-batch" not in error and "gradient_checkpointing" not in error


def test_advice_leaves_out_what_is_taken():
    one = config(1, 1, gradient_checkpointing=True).build()
    all_taken = config(1, 1, gradient_checkpointing=True, optim="adamw_8bit").build()
    off = config(1, 1, gradient_checkpointing=False).build()
    here = relief.Means(eight_bit=False, gpu=False, cuda=False, by_name=True, fresh=True)

    assert "use gradient_checkpointing=True, optim=" in relief.advice(off, "training", HAVE)
    told = relief.advice(one, "training", here)
    assert "use optim='adamw_8bit' (pip install bitsandbytes), a smaller max_length" in told
    assert "use a smaller max_length" in relief.advice(all_taken, "training", HAVE)


def test_no_micro_batch_is_tried_where_weights_and_states_alone_do_not_fit(experiment):
    exp = experiment()
    run = config(8, 1, {"hidden": 64, "layers": 6}, num_train_epochs=1)
    needed = needed_by(exp, run, 16)
    small = experiment("small")

    small.run_fit(
        run,
        small_device,
        tiny.sft_rows(16),
        num_chunks=2,
        device_memory=needed.base + needed.own - needed.activations - 1000,
        block=True,
    )

    assert small.run(1).status == "failed"
    assert "device_memory allows" in small.run(1).error
    assert adjusted(small) == []


def test_auto_checkpoints_gradients_before_it_makes_batches_smaller(experiment, tmp_path):
    exp = experiment()
    run = config(4, 1, {"hidden": 64, "layers": 6}, gradient_checkpointing=False)
    needed = needed_by(exp, run, 12)
    small = experiment("small")

    small.run_fit(
        run,
        small_device,
        tiny.sft_rows(12),
        num_chunks=2,
        memory="auto",
        device_memory=needed.base + needed.own - needed.activations // 4,
        host_memory="1 GB",
        block=True,
    )

    assert small.run(1).status == "completed", small.run(1).trace
    assert adjusted(small) == [{"training_args.gradient_checkpointing": True}]
    assert small.run(1).memory.activations < needed.activations
    assert_same(sliced(small.run(1)), sliced(exp.run(1)))
