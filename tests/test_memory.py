"""Memory: frozen weights exist once, an added run costs little, and an ended one leaves nothing."""

import gc
import json
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
import tiny
import torch
from transformers import LlamaForCausalLM, Trainer, TrainerCallback

from rapidfire_jupyter import RFLoraConfig, RFModelConfig, RFSFTConfig

held = {}  # by the seed of a run: weak references to what it trains with, by name


class Remember(TrainerCallback):
    """Notes what a run trains with. Every run of these tests has a seed of its own."""

    def on_step_end(self, args, state, control, model, optimizer, lr_scheduler, **kwargs):
        trained = [p for p in model.parameters() if p.requires_grad]
        held[args.seed] = {
            "model": weakref.ref(model),
            "base model": weakref.ref(model.get_base_model()),
            "optimizer": weakref.ref(optimizer),
            "scheduler": weakref.ref(lr_scheduler),
            "data loader": weakref.ref(kwargs["train_dataloader"]),
            "tokenizer": weakref.ref(kwargs["processing_class"]),
            **{f"weight {n}": weakref.ref(p) for n, p in enumerate(trained)},
        }


class RaiseAtThirdStep(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 2:
            raise ValueError("broken on purpose")


@pytest.fixture(autouse=True)
def only_what_this_test_makes():
    """Leave what is there before a test out of collections and counts; they are quick then."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def config(seed, callbacks=(), **given):
    args = {"per_device_train_batch_size": 2, "num_train_epochs": 50, "logging_steps": 100, **given}
    return RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1),
        training_args=RFSFTConfig(**args),
        callbacks=[Remember, *callbacks],
        seed=seed,
    )


def parked(exp, configs):
    """Start the runs and park them all after at least one step each."""
    held.clear()
    exp.run_fit(configs, tiny.create_model, tiny.sft_rows(24), num_chunks=1, slice_steps=1)
    until(lambda: all(run.facts.step > 0 for run in exp.runs))
    exp.pause_all().wait()


def until(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "nothing came of it"
        time.sleep(0.005)


def alive(seed):
    """Names of what is still there of a run, once all garbage is collected."""
    gc.collect()
    return sorted(name for name, ref in held[seed].items() if ref() is not None)


def count(kind):
    """Live objects of a class and its subclasses that this test made."""
    gc.collect()
    return sum(issubclass(type(thing), kind) for thing in gc.get_objects())


def run_threads():
    return [t.name for t in threading.enumerate() if t.name.startswith("rapidfire-run-")]


def test_runs_share_the_storage_of_one_base(experiment):
    exp = experiment()
    parked(exp, [config(seed) for seed in (1, 2, 3)])

    models = [held[seed]["model"]() for seed in (1, 2, 3)]

    frozen = [{p.data_ptr() for p in m.parameters() if not p.requires_grad} for m in models]
    trained = [{p.data_ptr() for p in m.parameters() if p.requires_grad} for m in models]
    assert frozen[0] == frozen[1] == frozen[2]
    assert len(frozen[0]) == len(list(tiny.model().parameters()))
    assert not trained[0] & trained[1] and not trained[1] & trained[2]
    assert len({id(m.config) for m in models}) == 3
    assert len({id(held[seed]["tokenizer"]()) for seed in (1, 2, 3)}) == 3


def test_parked_runs_keep_no_gradients(experiment):
    exp = experiment()
    parked(exp, [config(seed) for seed in (1, 2)])

    models = [held[seed]["model"]() for seed in (1, 2)]

    assert all(p.grad is None for model in models for p in model.parameters())


@pytest.mark.parametrize("how", ["stop", "delete", "complete", "fail"])
def test_an_ended_run_leaves_nothing(experiment, how):
    exp = experiment()
    special = {
        "complete": config(2, max_steps=3),
        "fail": config(2, [RaiseAtThirdStep]),
    }
    parked(exp, [config(1), special.get(how, config(2)), config(3)])
    assert all(len(alive(seed)) == len(held[seed]) for seed in (1, 2, 3))

    if how in ("stop", "delete"):
        getattr(exp, how)(2).wait()
    else:
        exp.resume_all().wait()
        exp.run(2).wait()
        exp.pause_all().wait()

    assert (
        exp.run(2).status
        == {
            "stop": "stopped",
            "delete": "deleted",
            "complete": "completed",
            "fail": "failed",
        }[how]
    )
    assert alive(2) == []
    assert len(alive(1)) == len(held[1]) and len(alive(3)) == len(held[3])
    assert count(Trainer) == 2
    assert run_threads() == ["rapidfire-run-1", "rapidfire-run-3"]


def test_stopping_and_resuming_piles_nothing_up(experiment):
    exp = experiment()
    parked(exp, [config(1), config(2)])

    for _ in range(3):
        exp.stop(2).wait()
        step = exp.run(2).facts.step
        exp.resume(2).wait()
        exp.resume_all().wait()
        until(lambda step=step: exp.run(2).facts.step > step)
        exp.pause_all().wait()

    assert count(Trainer) == 2
    assert count(LlamaForCausalLM) == 3  # the base, and a skeleton for each run
    assert sorted(run_threads()) == ["rapidfire-run-1", "rapidfire-run-2"]


def test_end_frees_runs_base_and_data(experiment):
    exp = experiment()
    parked(exp, [config(seed) for seed in (1, 2, 3)])
    data = weakref.ref(held[1]["data loader"]().dataset)

    exp.end()

    assert [alive(seed) for seed in (1, 2, 3)] == [[], [], []]
    assert count(Trainer) == 0
    assert count(LlamaForCausalLM) == 0
    assert data() is None
    assert run_threads() == []


def test_a_failed_build_leaves_nothing(experiment):
    exp = experiment()
    broken = config(2, [RaiseAtInit])

    exp.run_fit([broken], tiny.create_model, tiny.sft_rows(8), num_chunks=1, block=True)

    assert exp.run(1).status == "failed"
    assert count(Trainer) == 0
    assert count(LlamaForCausalLM) == 1  # the base
    assert run_threads() == []


class RaiseAtInit(TrainerCallback):
    def on_init_end(self, args, state, control, **kwargs):
        raise ValueError("broken on purpose")


def test_accelerates_registries_of_other_threads_hold_nothing_of_runs(experiment):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState, PartialState

    exp = experiment()
    parked(exp, [config(0, max_steps=1)])  # what one run does once is done
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(torch.utils.data.DataLoader([1, 2, 3]))
    batches = iter(loader)
    next(batches)
    before = registries(PartialState, AcceleratorState, GradientState)

    other = experiment("other")
    parked(other, [config(1), config(2)])
    during = registries(PartialState, AcceleratorState, GradientState)
    other.stop(1).wait()
    other.end()

    assert during == before
    assert registries(PartialState, AcceleratorState, GradientState) == before
    assert GradientState().active_dataloader is loader
    assert [alive(seed) for seed in (1, 2)] == [[], []]
    assert len(list(batches)) == 2


def registries(*owners):
    """What accelerate shares in this thread, by identity."""
    return [
        {
            name: [id(one) for one in value] if isinstance(value, list) else id(value)
            for name, value in owner._shared_state.items()
        }
        for owner in owners
    ]


@pytest.mark.slow
def test_a_parked_run_costs_its_adapter_gradients_and_moments_and_little_more():
    script = Path(__file__).parent / "benchmarks" / "growth.py"

    done = subprocess.run(
        [sys.executable, script, "10M", "8", "32"], capture_output=True, text=True, check=True
    )

    figures = json.loads(done.stdout.splitlines()[-1])
    allowed = 1.2 * figures["adapter_gradient_adam_mib"] + 12e6 / 2**20
    assert figures["growth_mib"] <= allowed, figures
