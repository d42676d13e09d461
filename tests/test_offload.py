"""Runs on a device that holds one base and one run: everything moves, and no number changes."""

import multiprocessing
import os
import signal
import sys
from itertools import pairwise

import pytest
import tiny
from oracle import assert_same, plain, sliced

from rapidfire_jupyter import Experiment, RFDPOConfig, RFLoraConfig, RFModelConfig, RFSFTConfig
from rapidfire_jupyter.executors.local import OFFLOAD
from rapidfire_jupyter.waiting import until

KIB = 1024


def config(hidden=32, peft=True, seed=None, kind=RFSFTConfig, model=None, **given):
    args = {
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 4,
        "logging_steps": 1,
        "num_train_epochs": 1,
        **given,
    }
    lora = RFLoraConfig(r=8, lora_dropout=0.1, target_modules="all-linear")
    return RFModelConfig(
        "tiny",
        peft_config=lora if peft else None,
        training_args=kind(**args),
        model_kwargs={"hidden": hidden, **(model or {})},
        seed=seed,
    )


def needs(exp):
    """Bytes of each run, as it was prepared."""
    return [e.data["memory"] for e in exp.events if e.kind == "run_prepared"]


def whole(memory):
    return sum(memory[k] for k in ("base", "weights", "gradients", "optimizer", "activations"))


CONFIGS = [
    config(32),
    config(64, num_train_epochs=2),
    config(32, seed=3, optim="sgd"),
    config(48, peft=False),
    config(64, seed=5, bf16=True, gradient_checkpointing=False),
]


@pytest.fixture(scope="module")
def unlimited(tmp_path_factory):
    """The same runs without a budget: what they end with, and what the largest one needs."""
    exp = Experiment("exp", root=tmp_path_factory.mktemp("unlimited"))
    exp.run_fit(
        CONFIGS,
        tiny.create_model,
        tiny.sft_rows(24),
        tiny.sft_rows(30)[24:],
        num_chunks=3,
        eval_budget=1.0,
    )
    exp.wait()
    assert {run.status for run in exp.runs} == {"completed"}, [run.trace for run in exp.runs]
    ended = [sliced(run) for run in exp.runs], [run.rows for run in exp.runs], needs(exp)
    exp.end()
    return ended


def cells(root, budget, host=None, **more):
    exp = Experiment("exp", root=root)
    exp.run_fit(
        CONFIGS,
        tiny.create_model,
        tiny.sft_rows(24),
        tiny.sft_rows(30)[24:],
        num_chunks=3,
        device_memory=budget,
        host_memory=host,
        eval_budget=1.0,
        **more,
    )
    return exp


def losses(rows):
    return [{k: v for k, v in row.items() if "loss" in k or k == "step"} for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize(("host", "steps"), [(1 << 30, None), (None, 1), (256 * KIB, 2)])
def test_three_bases_and_five_runs_on_a_device_for_one_end_the_same(
    tmp_path, unlimited, host, steps
):
    ended, rows, needed = unlimited
    budget = max(map(whole, needed)) + 8 * KIB
    assert sum(map(whole, needed)) > 2.5 * budget

    exp = cells(tmp_path, budget, host, slice_steps=steps)
    exp.wait()

    assert {run.status for run in exp.runs} == {"completed"}, [run.trace for run in exp.runs]
    for run, before, logged in zip(exp.runs, ended, rows, strict=True):
        assert run.exact
        assert_same(sliced(run), before, f"run {run.id}")
        assert losses(run.rows) == losses(logged)
    moved = exp._fit.executor.moved()
    assert moved.in_bytes > 2 * budget and moved.out_bytes > 2 * budget, (moved, budget)
    assert (moved.disk_bytes > 0) is (host != 1 << 30)
    slices = [e.data for e in exp.events if e.kind == "slice_ended"]
    assert all(0 <= one["moving_seconds"] < one["seconds"] for one in slices)
    in_slices = sum(one["moving_seconds"] for one in slices)
    assert 0.2 * moved.seconds < in_slices <= moved.seconds  # the rest is preparation
    assert not any(e.kind == "run_adjusted" for e in exp.events)
    told = [e.data.get("text", "") for e in exp.events if e.kind == "alert"]
    assert sum("what is not needed waits in host memory or on disk" in one for one in told) == 1
    exp.end()
    assert not (exp.folder / OFFLOAD).exists()


def test_sft_and_dpo_with_a_reference_equal_plain_trl_while_they_move(experiment, tmp_path):
    exp = experiment()
    dpo = config(32, kind=RFDPOConfig, max_length=32)
    runs = [dpo, config(64, kind=RFDPOConfig, max_length=32), dpo.copy(seed=2)]

    exp.run_fit(runs, tiny.create_model, tiny.dpo_rows(8), num_chunks=2)
    exp.wait()
    budget = max(map(whole, needs(exp))) + 8 * KIB
    small = experiment("small")
    small.run_fit(
        runs,
        tiny.create_model,
        tiny.dpo_rows(8),
        num_chunks=2,
        device_memory=budget,
        host_memory="1 GB",
        block=True,
    )

    assert {run.status for run in small.runs} == {"completed"}, [run.trace for run in small.runs]
    assert small._fit.executor.moved().in_bytes > 0
    for run, before in zip(small.runs, exp.runs, strict=True):
        assert_same(sliced(run), sliced(before), f"run {run.id}")
    assert_same(sliced(small.run(1)), plain(small.run(1), tmp_path / "plain"))


def test_a_reference_that_runs_share_is_there_for_a_run_that_is_made_after_they_have_ended(
    experiment, tmp_path
):
    def dpo(hidden, name):
        folder = tmp_path / name
        tiny.model(hidden=hidden, seed=9).save_pretrained(folder)
        one = config(hidden, peft=False, kind=RFDPOConfig, max_length=32)
        return one.copy(ref_model_name=str(folder), name=name)

    runs = [dpo(32, "narrow"), dpo(64, "wide")]
    exp = experiment()
    exp.run_fit(runs, tiny.create_model, tiny.dpo_rows(8), num_chunks=2, block=True)
    budget = max(map(whole, needs(exp))) + 8 * KIB
    assert needs(exp)[0]["base"] > 0  # the reference counts
    small = experiment("small")
    small.run_fit(
        runs,
        tiny.create_model,
        tiny.dpo_rows(8),
        num_chunks=2,
        device_memory=budget,
        host_memory="1 GB",
        block=True,
    )
    there = small._fit.executor._residency
    assert not there.is_resident("frozen-1")

    small.clone(1, {"name": "again"}, again=True).wait(60)
    small.wait(60)

    assert {run.status for run in small.runs} == {"completed"}, [run.trace for run in small.runs]
    for run, before in zip(small.runs, [*exp.runs, exp.run(1)], strict=True):
        assert_same(sliced(run), sliced(before), f"run {run.id}")


def test_a_run_that_cannot_fit_is_refused_with_numbers_and_the_others_train(experiment):
    exp = experiment()

    exp.run_fit(
        [config(256, peft=False), config(32)],
        tiny.create_model,
        tiny.sft_rows(8),
        num_chunks=2,
        device_memory=2_000_000,
        host_memory="1 GB",
        block=True,
    )

    assert [run.status for run in exp.runs] == ["failed", "completed"], exp.run(2).trace
    error = exp.run(1).error
    assert "device_memory allows 1.9 MiB" in error and "MiB of weights and states" in error
    assert "use peft_config=RFLoraConfig(), optim='adamw_8bit'" in error


def test_runs_of_one_base_train_beside_each_other_where_a_base_must_be_brought_in(experiment):
    exp = experiment()
    runs = [config(32), config(64), config(32, seed=2), config(64, seed=2)]
    exp.run_fit(runs, tiny.create_model, tiny.sft_rows(12), num_chunks=3, block=True)
    budget = max(map(whole, needs(exp))) + 8 * KIB

    small = experiment("small")
    small.run_fit(
        runs,
        tiny.create_model,
        tiny.sft_rows(12),
        num_chunks=3,
        device_memory=budget,
        host_memory="1 GB",
        block=True,
    )

    order = [e.run for e in small.events if e.kind == "slice_started"]
    passes = [order[n : n + 4] for n in range(0, 12, 4)]
    assert all(sorted(one) == [1, 2, 3, 4] for one in passes)
    bases = [small.run(number).facts.base for number in order]
    assert sum(a != b for a, b in pairwise(bases)) == 3


def test_ops_act_on_runs_that_are_away(experiment):
    exp = experiment()
    runs = [config(32), config(64), config(48)]
    exp.run_fit(runs, tiny.create_model, tiny.sft_rows(12), num_chunks=3, block=True)
    budget = max(map(whole, needs(exp))) + 8 * KIB
    small = experiment("small")
    longer = [one.copy(training_args=one.training_args.copy(num_train_epochs=60)) for one in runs]
    small.run_fit(
        longer,
        tiny.create_model,
        tiny.sft_rows(12),
        num_chunks=3,
        slice_steps=1,
        device_memory=budget,
    )
    until(small, lambda: all(run.facts.checkpoint_step for run in small.runs), 60)

    small.stop(1).wait(60)
    clone = small.clone(2, {"learning_rate": 1e-3}, warm=True).wait(60)
    small.delete(3).wait(60)
    small.resume(1).wait(60)
    small.stop(2).wait(60)
    step = small.run(1).facts.step
    until(small, lambda: small.run(1).facts.step > step and small.run(4).facts.step > 0, 60)

    assert clone.run_id == 4
    assert [run.status for run in small.runs][1:3] == ["stopped", "deleted"]
    assert not [e for e in small.events if e.kind == "run_failed"]


def _killed(root, path, budget):
    sys.path[:] = path
    import torch

    torch.set_num_threads(1)
    seen = []

    def kill(event):
        seen.append(event.kind)
        if seen.count("slice_ended") == 8:
            os.kill(os.getpid(), signal.SIGKILL)

    exp = cells(root, budget)
    exp._opened.log.subscribe(kill)
    exp.wait(120)


@pytest.mark.slow
def test_killed_with_runs_on_disk_the_same_cells_end_the_same(tmp_path, unlimited):
    ended, _, needed = unlimited
    budget = max(map(whole, needed)) + 8 * KIB
    context = multiprocessing.get_context("forkserver")
    child = context.Process(target=_killed, args=(str(tmp_path), sys.path, budget))
    child.start()
    child.join(180)
    assert child.exitcode == -signal.SIGKILL
    left = list((tmp_path / "exp" / OFFLOAD).iterdir())

    exp = cells(tmp_path, budget)
    exp.wait()

    assert left
    assert {run.status for run in exp.runs} == {"completed"}, [run.trace for run in exp.runs]
    for run, before in zip(exp.runs, ended, strict=True):
        assert_same(sliced(run), before, f"run {run.id}")
    exp.end()
    assert not (exp.folder / OFFLOAD).exists()
