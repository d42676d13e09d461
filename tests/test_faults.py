"""Known faults of neighbouring tools: steps, seeds, schedules, odd moments, memory, bad input."""

import errno
import json
import math
import multiprocessing
import os
import re
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file

from rapidfire_jupyter import (
    Experiment,
    List,
    RFGRPOConfig,
    RFLoraConfig,
    RFModelConfig,
    RFSFTConfig,
)
from rapidfire_jupyter.engine import engine
from rapidfire_jupyter.errors import ConfigError, DataError, ExperimentError, OpError

SEEN = {}  # what callbacks of runs saw, by a key that the test chose as their run_name
FAULTY = set()  # run_names whose next step fails


def lora(**given):
    return RFLoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], **given})


ADAPTER = lora()


def config(peft=ADAPTER, model=None, **given):
    """One run's config; peft=None trains all weights."""
    args = {"learning_rate": 1e-2, "per_device_train_batch_size": 2, "logging_steps": 1}
    args |= {"num_train_epochs": 1, **given}
    return RFModelConfig(
        "tiny", peft_config=peft, training_args=RFSFTConfig(**args), **(model or {})
    )


def steps_of(run):
    return [row["step"] for row in run.rows if "loss" in row]


def losses_of(run):
    return [row["loss"] for row in run.rows if "loss" in row]


def weights_of(run):
    return load_file(str(run.folder / "final" / "adapter_model.safetensors"))


def assert_equal_weights(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def once(exp, run, step, action, kind="logged"):
    """Call `action` once, when this run logs this step (or at its first event of a kind)."""
    done = []

    def listen(event):
        if event.kind != kind or event.run != run or done:
            return
        if step is None or (event.data.get("row") or event.data).get("step") == step:
            done.append(action())

    exp._opened.log.subscribe(listen)
    return done


def plain_trainer(rows, tmp_path, kind="SFT", callbacks=(), evaluation=None, peft=None, **given):
    """A plain TRL trainer on the same rows, seeds and model."""
    import trl
    from datasets import Dataset
    from peft import LoraConfig

    args = getattr(trl, f"{kind}Config")(
        output_dir=str(tmp_path / "plain"), use_cpu=True, report_to="none", save_strategy="no",
        disable_tqdm=True, seed=42, data_seed=42,
        **{"learning_rate": 1e-2, "logging_steps": 1, "num_train_epochs": 1, **given},
    )  # fmt: skip
    return getattr(trl, f"{kind}Trainer")(
        model=tiny.model(),
        args=args,
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(evaluation) if evaluation else None,
        processing_class=tiny.tokenizer(),
        callbacks=list(callbacks),
        peft_config=LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}),
        **({"reward_funcs": [tiny.reward_length]} if kind == "GRPO" else {}),
    )


# ---- steps and batches ----


class Batches(tiny.Callback):
    """Notes every batch that a training step computes on."""

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        seen = SEEN.setdefault(args.run_name, [])

        def note(module, positional, keywords):
            if module.training:
                seen.append(keywords["input_ids"].tolist())

        model.register_forward_pre_hook(note, with_kwargs=True)


@pytest.mark.slow
def test_batches_are_plain_trls_and_every_row_comes_once_an_epoch(experiment, tmp_path):
    SEEN.clear()
    rows = tiny.sft_rows(101)
    args = {
        "per_device_train_batch_size": 5,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
    }
    exp = experiment()
    trainer = plain_trainer(rows, tmp_path, callbacks=[Batches()], run_name="plain", **args)
    trainer.train()

    exp.run_fit(
        config(model={"callbacks": [Batches]}, run_name="sliced", **args),
        tiny.create_model,
        rows,
        num_chunks=4,
        block=True,
    )

    run = exp.run(1)
    assert run.facts.chunk_ends == (3, 5, 8, 11, 14, 16, 19, 22)
    assert SEEN["sliced"] == SEEN["plain"] and len(SEEN["plain"]) == 42
    sizes = [len(batch) for batch in SEEN["sliced"]]
    assert sizes == ([5] * 20 + [1]) * 2
    tokenizer = tiny.tokenizer()
    for epoch in (SEEN["sliced"][:21], SEEN["sliced"][21:]):
        texts = [tokenizer.decode(row) for batch in epoch for row in batch]
        assert sorted(int(text.split()[0]) for text in texts) == list(range(101))
    assert losses_of(run) == [row["loss"] for row in trainer.state.log_history if "loss" in row]


@pytest.mark.slow
def test_max_steps_ends_inside_a_chunk_and_intervals_longer_than_a_chunk_fire(experiment, tmp_path):
    short = {"per_device_train_batch_size": 10, "max_steps": 50, "logging_steps": 10}
    sparse = {
        "per_device_train_batch_size": 1,
        "eval_strategy": "steps",
        "eval_steps": 15,
        "logging_steps": 7,
    }
    first, second = experiment("short"), experiment("sparse")
    trainer = plain_trainer(
        tiny.sft_rows(40), tmp_path, evaluation=tiny.sft_rows(44)[40:], **sparse
    )
    trainer.train()

    first.run_fit(config(**short), tiny.create_model, tiny.sft_rows(900), num_chunks=2)
    second.run_fit(
        config(**sparse),
        tiny.create_model,
        tiny.sft_rows(40),
        tiny.sft_rows(44)[40:],
        num_chunks=4,
    )
    first.wait()
    second.wait()

    run = first.run(1)
    assert (run.status, run.facts.step, run.facts.total_steps) == ("completed", 50, 50)
    assert run.facts.chunk_ends == (45, 50) and steps_of(run) == [10, 20, 30, 40, 50]
    run = second.run(1)
    assert run.facts.chunk_ends == (10, 20, 30, 40)
    plain = [(row["step"], sorted(row)) for row in trainer.state.log_history]
    trained = [row for row in run.rows if "eval_bleu" not in row]
    keys = [(row["step"], sorted(row.keys() - {"eval_perplexity"})) for row in trained]
    assert keys == plain
    assert steps_of(run) == [7, 14, 21, 28, 35]
    assert [row["step"] for row in run.rows if "eval_loss" in row] == [15, 30, 40]


@pytest.mark.parametrize("num_iterations", [1, 2])
def test_grpos_planned_real_and_plain_steps_are_one_number(experiment, tmp_path, num_iterations):
    args = {
        "per_device_train_batch_size": 4,
        "num_generations": 2,
        "num_iterations": num_iterations,
        "max_completion_length": 4,
        "logging_steps": 1,
        "num_train_epochs": 1,
    }
    exp = experiment()
    trainer = plain_trainer(tiny.grpo_rows(8), tmp_path, kind="GRPO", **args)
    trainer.train()

    exp.run_fit(
        RFModelConfig(
            "tiny",
            peft_config=lora(),
            reward_funcs=[tiny.reward_length],
            training_args=RFGRPOConfig(learning_rate=1e-2, **args),
        ),
        tiny.create_model,
        tiny.grpo_rows(8),
        num_chunks=2,
        block=True,
    )

    run = exp.run(1)
    assert run.status == "completed", run.trace
    assert run.facts.total_steps == run.facts.step == trainer.state.global_step
    assert run.facts.chunk_ends[-1] == run.facts.step and run.facts.chunk == len(
        run.facts.chunk_ends
    )
    rates = [row["learning_rate"] for row in run.rows if "loss" in row]
    plain = [row["learning_rate"] for row in trainer.state.log_history if "loss" in row]
    assert rates == plain and len(rates) == run.facts.step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "accumulation", "epochs", "chunks", "steps"),
    [(5, 2, 2, (1, 2), 6), (10, 4, 1, (1, 3), 3)],
)
def test_a_window_over_the_end_of_a_chunk_or_epoch_is_a_step_as_in_plain_trl(
    experiment, tmp_path, rows, accumulation, epochs, chunks, steps
):
    args = {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": accumulation,
        "num_train_epochs": epochs,
    }
    trainer = plain_trainer(tiny.sft_rows(rows), tmp_path, **args)
    trainer.train()
    plain = [row["loss"] for row in trainer.state.log_history if "loss" in row]

    for number in chunks:
        exp = experiment(f"chunks {number}")
        exp.run_fit(
            config(**args), tiny.create_model, tiny.sft_rows(rows), num_chunks=number, block=True
        )
        assert exp.run(1).facts.step == steps == len(plain)
        assert losses_of(exp.run(1)) == plain


@pytest.mark.slow
def test_batch_4_and_batch_1_accumulated_4_times_have_the_same_losses(experiment):
    exp = experiment()
    args = {"optim": "sgd", "max_grad_norm": 0.0, "bf16": False, "learning_rate": 0.5}
    runs = [
        config(
            peft,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulation,
            **args,
        )
        for peft in (ADAPTER, None)
        for size, accumulation in ((4, 1), (1, 4))
    ]

    exp.run_fit(
        runs,
        tiny.create_model,
        tiny.sft_rows(26),
        num_chunks=3,
        block=True,
    )

    assert len(exp.runs) == 4
    for one, other in ((1, 2), (3, 4)):
        assert exp.run(one).facts.chunk_ends == exp.run(other).facts.chunk_ends
        assert len(losses_of(exp.run(one))) == 7
        assert losses_of(exp.run(one)) == pytest.approx(losses_of(exp.run(other)), abs=1e-3)
    assert losses_of(exp.run(1)) != losses_of(exp.run(3))


# ---- seeds ----


def create_drawing(config):
    """A create_model_fn that draws from, and reseeds, every random stream."""
    import random

    random.random()
    np.random.rand(3)
    torch.rand(5)
    model = tiny.model()
    with torch.no_grad():
        model.lm_head.weight.add_(torch.randn_like(model.lm_head.weight) * 1e-2)
    torch.manual_seed(random.randrange(10**6))
    return model, tiny.tokenizer()


@pytest.mark.slow
def test_a_run_starts_the_same_wherever_it_stands_and_another_seed_starts_otherwise(experiment):
    one = config(lora(lora_dropout=0.1), max_steps=3)
    other = config(lora(r=8, use_dora=True), max_steps=2)
    cells = (create_drawing, tiny.sft_rows(12))
    single, exp = experiment("single"), experiment("group")

    single.run_fit(one, *cells, num_chunks=2, block=True)
    torch.manual_seed(9)
    exp.run_fit(
        [one, other, one.copy(name="third"), one.copy(seed=1)], *cells, num_chunks=2, block=True
    )
    exp.clone(3).wait(30)
    exp.wait()

    alone = single.run(1)
    assert alone.status == "completed", alone.trace
    for position in (1, 3, 5):
        assert losses_of(exp.run(position)) == losses_of(alone)
        assert_equal_weights(weights_of(exp.run(position)), weights_of(alone))
    starts = [
        next(value for name, value in weights_of(run).items() if "lora_A" in name)
        for run in (alone, exp.run(4))
    ]
    assert not torch.equal(*starts) and losses_of(exp.run(4)) != losses_of(alone)


# ---- early stopping, longer training ----


def same_score(prediction):
    return {"score": 1.0}


@pytest.mark.slow
def test_patience_survives_stops_and_a_later_kernel_and_a_finished_run_says_why_it_ended(
    experiment, tmp_path
):
    from transformers import EarlyStoppingCallback

    stopping = config(
        model={
            "callbacks": [EarlyStoppingCallback(early_stopping_patience=3)],
            "compute_metrics": same_score,
        },
        eval_strategy="chunk",
        save_strategy="chunk",
        load_best_model_at_end=True,
        metric_for_best_model="eval_score",
        greater_is_better=True,
    )
    group = [stopping, *[config(seed=s, max_steps=6) for s in (1, 2, 3)]]
    data = (tiny.sft_rows(24), tiny.sft_rows(30)[26:])
    exp = experiment()
    once(exp, 1, 4, lambda: exp.stop(1))
    exp.run_fit(group, tiny.create_model, *data, num_chunks=6)
    exp.run(1).wait(60)
    assert exp.run(1).status == "stopped" and exp.run(1).facts.step in (4, 5)
    resumed = threading.Event()
    once(exp, 1, 6, resumed.set)
    exp.resume(1).wait(30)
    assert resumed.wait(60)

    exp.end()
    exp = experiment()
    exp.run_fit(group, tiny.create_model, *data, num_chunks=6, block=True)

    run = exp.run(1)
    evaluated = [row["step"] for row in run.rows if "eval_score" in row]
    assert evaluated == [2, 4, 6, 8] and run.facts.step == 8
    assert [r.status for r in exp.runs] == ["completed"] * 4
    with pytest.raises(OpError, match=r"num_train_epochs= or max_steps="):
        exp.resume(1).wait(30)
    assert exp.run(1).facts.step == 8
    told = json.dumps([event.data for event in exp.events if event.kind == "run_completed"])
    assert "early" in told.lower() or "8 of 12" in told


def test_a_clone_of_a_finished_run_with_more_epochs_learns_until_its_new_end(experiment):
    exp = experiment()
    cloned = once(
        exp,
        1,
        4,
        lambda: exp.clone(1, {"lr_scheduler_type": "cosine", "warmup_steps": 2}, warm=True),
    )
    exp.run_fit(config(), tiny.create_model, tiny.sft_rows(16), num_chunks=2, block=True)
    longer = exp.clone(1, {"num_train_epochs": 3}, warm=True).wait(30)
    cloned[0].wait(30)
    exp.wait()

    rates = {
        row["step"]: row["learning_rate"] for row in exp.run(longer.run_id).rows if "loss" in row
    }
    assert list(rates) == list(range(9, 25))
    for step, rate in rates.items():  # the longer schedule's value for that step
        assert rate == pytest.approx(1e-2 * (24 - step + 1) / 24)
    half = exp.run(cloned[0].run_id)
    rates = {row["step"]: row["learning_rate"] for row in half.rows if "loss" in row}
    assert list(rates) == [5, 6, 7, 8]
    for step, rate in rates.items():
        progress = (step - 1 - 2) / (8 - 2)
        assert rate == pytest.approx(1e-2 * 0.5 * (1 + math.cos(math.pi * progress)))
        assert rate > 0


def test_a_longer_end_is_kept_when_the_same_cells_run_again(experiment):
    exp = experiment()
    cells = (config(max_steps=4), tiny.create_model, tiny.sft_rows(16))
    exp.run_fit(*cells, num_chunks=2, block=True)

    exp.resume(1, max_steps=6).wait(30)
    exp.wait()
    assert steps_of(exp.run(1)) == [1, 2, 3, 4, 5, 6]
    exp.run_fit(*cells, num_chunks=2, block=True)
    exp.end()
    exp = experiment()
    exp.run_fit(*cells, num_chunks=2, block=True)

    assert (exp.run(1).status, exp.run(1).facts.total_steps) == ("completed", 6)
    assert steps_of(exp.run(1)) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "changes", [{"learning_rate": 1e-3}, {"per_device_train_batch_size": 4}, {"max_steps": 3}]
)
def test_a_resume_takes_a_longer_end_and_nothing_else(experiment, changes):
    """With other values the same cells would be refused when they run again."""
    exp = experiment()
    cells = (config(max_steps=4), tiny.create_model, tiny.sft_rows(16))
    exp.run_fit(*cells, num_chunks=2, block=True)

    with pytest.raises((ConfigError, OpError), match=r"clone|4"):
        exp.resume(1, **{"max_steps": 6, **changes}).wait(30)
    exp.wait()
    exp.run_fit(*cells, num_chunks=2, block=True)

    assert (exp.run(1).status, exp.run(1).facts.total_steps) == ("completed", 4)


# ---- ops at odd moments ----


class Fails(tiny.Callback):
    """Raises at the fifth step of those runs that a test named."""

    def on_step_end(self, args, state, control, **kwargs):
        if args.run_name in FAULTY and state.global_step == 5:
            raise RuntimeError("no more")


# Run 1 only keeps the others waiting. At each moment run 2 is asked what leaves it training, and
# a run of the moment's own is stopped, resumed and deleted in one go.
MOMENTS = {"queued": (None, 3), "first chunk": (1, 4), "last chunk": (7, 5), "last step": (8, 6)}
KEEPS = (
    lambda exp, run: exp.resume(run),
    lambda exp, run: exp.boost(run, len(exp.events) + 1),
    lambda exp, run: exp.clone(run, warm=True, again=True),
)
ENDS = (
    lambda exp, run: exp.stop(run),
    lambda exp, run: exp.resume(run),
    lambda exp, run: exp.delete(run),
)
OUTCOMES = {
    "queued": ("already applied refused", "applied applied applied"),
    "first chunk": ("already applied applied", "applied applied applied"),
    "last chunk": ("already applied applied", "applied applied applied"),
    "last step": ("refused refused refused", "refused refused applied"),
}


def outcomes(handles):
    """What became of ops; a refusal, and nothing else, has a reason."""
    assert all(bool(h.reason) == (h.status == "refused") for h in handles), handles
    return " ".join(handle.status for handle in handles)


@pytest.mark.slow
@pytest.mark.parametrize("num_chunks", [1, 4])
def test_an_op_at_any_moment_of_a_run_acts_or_is_refused_with_a_sentence(experiment, num_chunks):
    FAULTY.add("failing")
    exp, asked = experiment(), {}

    def listen(event):
        for moment, (step, other) in MOMENTS.items():
            for run, acts in ((2, KEEPS), (other, ENDS)):
                here = (
                    (event.kind, event.run) == ("run_prepared", 1)
                    if step is None
                    else (event.kind, event.run) == ("logged", run)
                    and event.data["row"]["step"] == step
                )
                if here and (moment, run) not in asked:
                    asked[moment, run] = [act(exp, run) for act in acts]

    exp._opened.log.subscribe(listen)
    exp.run_fit(
        [
            *[config(seed=seed) for seed in range(6)],
            config(model={"callbacks": [Fails]}, run_name="failing"),
        ],
        tiny.create_model,
        tiny.sft_rows(16),
        num_chunks=num_chunks,
        block=True,
    )

    for moment, (step, other) in MOMENTS.items():
        assert outcomes(asked[moment, 2]) == OUTCOMES[moment][0], moment
        assert outcomes(asked[moment, other]) == OUTCOMES[moment][1], moment
        assert asked[moment, other][-1].step == (step or 0)
    assert [run.status for run in exp.runs] == [
        *["completed"] * 2, *["deleted"] * 4, "failed", *["completed"] * 2,
    ]  # fmt: skip
    assert [exp.run(clone).facts.clone_step for clone in (8, 9)] == [1, 7]
    for clone in (8, 9):
        assert_equal_weights(weights_of(exp.run(clone)), weights_of(exp.run(2)))
    assert exp.run(7).error == "RuntimeError: no more"
    saved = "applied" if num_chunks == 4 else "refused"
    for run, wanted in (
        (2, "refused refused refused refused applied"),
        (7, f"refused refused {saved} applied applied"),
        (3, "refused refused refused refused already"),
    ):
        late = [act(exp, run) for act in (ENDS[0], *KEEPS[1:], KEEPS[0], ENDS[2])]
        exp.wait(60)
        assert outcomes(late) == wanted, run
    assert exp.status == "idle" and exp._fit.halted == ""


# ---- ends and later kernels ----


@pytest.mark.slow
def test_after_a_restart_every_run_is_what_it_was_and_a_second_one_changes_nothing(experiment):
    FAULTY.add("failing")
    cells = (
        [
            config(max_steps=2),
            config(model={"callbacks": [Fails]}, run_name="failing"),
            config(seed=3),
            config(seed=4),
        ],
        tiny.create_model,
        tiny.sft_rows(100),
    )
    exp = experiment()
    begun = threading.Event()
    once(exp, 3, 2, begun.set)  # run 4 has not had a slice then
    exp.run_fit(*cells, num_chunks=4)
    assert begun.wait(60)
    exp.end()

    exp = experiment()
    assert [run.status for run in exp.runs][:2] == ["completed", "failed"]
    assert 0 < exp.run(3).facts.step < 50 and exp.run(4).facts.step < 50
    FAULTY.clear()
    exp.run_fit(*cells, num_chunks=4, block=True)
    assert [run.status for run in exp.runs] == ["completed", "failed", "completed", "completed"]
    exp.resume(2).wait(30)
    exp.wait()
    assert [run.status for run in exp.runs] == ["completed"] * 4
    for run, steps in zip(exp.runs, (2, 50, 50, 50), strict=True):
        assert steps_of(run) == list(range(1, steps + 1))
    exp.end()

    rows = [run.rows for run in exp.runs]
    exp = experiment()
    known = len(exp.events)
    exp.run_fit(*cells, num_chunks=4, block=True)
    assert {event.kind for event in exp.events[known:]} <= {"attached"}
    assert [run.rows for run in exp.runs] == rows and len(exp.runs) == 4


def test_no_run_of_an_ended_experiment_is_shown_as_running(experiment):
    exp = experiment()
    begun = threading.Event()
    once(exp, 1, 2, begun.set)
    exp.run_fit(config(), tiny.create_model, tiny.sft_rows(200), num_chunks=2)
    assert begun.wait(60)

    exp.end()

    assert exp.run(1).status != "running"
    assert "running" not in repr(experiment())


@pytest.fixture
def without_its_cell(experiment):
    """A later kernel in which a clone that was made with a function was not cloned again yet."""
    cells = (config(), tiny.create_model, tiny.sft_rows(60))
    exp = experiment()
    exp.run_fit(*cells, num_chunks=4)
    exp.clone(1, {"callbacks": [Fails]}).wait(60)
    exp.end()
    exp = experiment()
    exp.run_fit(*cells, num_chunks=4)
    exp.run(1).wait(60)
    return exp


@pytest.mark.slow
def test_a_clone_made_with_a_function_keeps_no_later_kernel_waiting_for_ever(without_its_cell):
    exp = without_its_cell

    exp.wait(3)  # nothing is left that could be trained
    again = exp.clone(1, {"callbacks": [Fails]}).wait(30)
    if exp.run(2).status == "stopped":
        exp.resume(2).wait(30)
    exp.wait(60)

    assert again.run_id == 2 and exp.run(2).status == "completed"


@pytest.mark.slow
def test_an_op_on_a_run_whose_functions_are_not_known_yet_says_so(without_its_cell):
    refused = without_its_cell.clone(2, {"seed": 1})

    with pytest.raises(OpError, match=r"run 2 .*function.*clone"):
        refused.wait(30)


# ---- memory ----


class Weak(tiny.Callback):
    """Keeps weak references to what a run holds."""

    def on_step_end(self, args, state, control, model=None, optimizer=None, **kwargs):
        things = (model, optimizer, kwargs.get("train_dataloader"), kwargs.get("lr_scheduler"))
        SEEN.setdefault(args.run_name, {i: weakref.ref(t) for i, t in enumerate(things)})


def alive(name):
    return [number for number, ref in SEEN[name].items() if ref() is not None]


@pytest.mark.slow
def test_what_a_run_held_dies_when_it_is_completed_stopped_deleted_or_ended(experiment):
    from accelerate.state import GradientState

    SEEN.clear()
    before = list(GradientState().dataloader_references)  # of other tests' own trainers
    exp = experiment()
    names = ["completed", "stopped", "deleted", "ended"]
    parked = threading.Event()
    once(exp, 2, 2, lambda: exp.stop(2))
    once(exp, 3, 2, lambda: exp.delete(3))
    once(exp, 4, 20, parked.set)
    exp.run_fit(
        [
            config(model={"callbacks": [Weak]}, run_name=n, max_steps=3 if n == "completed" else -1)
            for n in names
        ],
        tiny.create_model,
        tiny.sft_rows(400),
        num_chunks=8,
    )
    assert parked.wait(60)

    assert [run.status for run in exp.runs][:3] == ["completed", "stopped", "deleted"]
    assert [alive(name) for name in names[:3]] == [[], [], []]
    assert alive("ended") == [0, 1, 2, 3]
    exp.end()
    assert alive("ended") == []
    references = GradientState().dataloader_references
    assert [r for r in references if r is not None and all(r is not b for b in before)] == []


# ---- what this machine cannot do ----


@pytest.mark.usefixtures("no_bitsandbytes")
def test_an_optimiser_that_is_not_installed_is_refused_in_the_cell(experiment):
    exp = experiment()

    with pytest.raises(ConfigError, match=r"run 2: optim='adamw_8bit'.*pip install bitsandbytes"):
        exp.run_fit(
            config(optim=List(["adamw_torch", "adamw_8bit"]), max_steps=2),
            tiny.create_model,
            tiny.sft_rows(8),
            num_chunks=1,
        )
    assert exp.status == "empty"


@pytest.mark.skipif(torch.accelerator.is_available(), reason="fp16 is possible here")
def test_fp16_without_a_gpu_is_refused_or_told(experiment):
    """Plain TRL trains on in float32 without a word."""
    exp = experiment()

    try:
        exp.run_fit(
            config(fp16=List([False, True]), bf16=False, max_steps=1),
            tiny.create_model,
            tiny.sft_rows(4),
            num_chunks=1,
            block=True,
        )
        told = " ".join(str(e.data) for e in exp.events if e.kind in ("alert", "run_failed"))
    except ConfigError as error:
        told = str(error)

    assert "fp16" in told


# ---- metrics that cannot be stored ----


def all_kinds(prediction):
    return {
        "float32": np.float32(0.5),
        "one_in_an_array": np.array([0.25]),
        "tensor": torch.tensor(2),
        "nan": float("nan"),
        "array": np.arange(3.0),
        "nested": {"inner": 1.0},
        "none": None,
        "text": "good",
        "long": "x" * 10_000_000,
    }


def raises(prediction):
    raise KeyError("reference")


def no_dict(prediction):
    return 0.5


def test_metrics_that_cannot_be_stored_cost_their_value_and_neither_run_nor_checkpoint(experiment):
    exp = experiment()
    group = [
        config(
            model={"compute_metrics": function},
            eval_strategy="steps",
            eval_steps=1,
            save_strategy="steps",
            save_steps=1,
            max_steps=2,
        )
        for function in (all_kinds, raises, no_dict)
    ]

    exp.run_fit(
        group, tiny.create_model, tiny.sft_rows(4), tiny.sft_rows(6)[4:], num_chunks=1, block=True
    )

    numbers = {"float32": 0.5, "one_in_an_array": 0.25, "tensor": 2, "nan": math.nan}
    alerts = {run.id: [] for run in exp.runs}
    for event in exp.events:
        if event.kind == "alert":
            alerts[event.run].append(event.data["text"])
    for run in exp.runs:
        assert run.status == "completed", run.trace
        evaluated = [row for row in run.rows if "eval_loss" in row]
        assert [row["step"] for row in evaluated] == [1, 2]
        for row in evaluated if run.id == 1 else ():
            got = {k.removeprefix("eval_"): v for k, v in row.items()}
            assert {k: got[k] for k in numbers} == pytest.approx(numbers, nan_ok=True)
            assert not {"array", "nested", "none", "text", "long"} & set(got)
        state = json.loads((run.checkpoint / "trainer_state.json").read_text())
        assert len([row for row in state["log_history"] if "eval_loss" in row]) == 2
    for key in ("array", "nested", "none", "text", "long"):
        assert sum(f"'{key}'" in text or f"'eval_{key}'" in text for text in alerts[1]) == 1, key
    assert len(alerts[1]) == 5 and all(len(text) < 2000 for text in alerts[1])
    assert len(alerts[2]) in (1, 2) and "KeyError('reference')" in alerts[2][0]
    lines = (exp.folder / "events.jsonl").read_text().splitlines()
    assert all(json.loads(line, parse_constant=pytest.fail) for line in lines)
    assert (exp.folder / "events.jsonl").stat().st_size < 1_000_000
    assert len(alerts[3]) == 1 and "must return a dict" in alerts[3][0]  # not at each evaluation


def unstorable(how, on_step=lambda: None):
    """A callback whose state cannot be stored once it has trained."""
    from transformers.trainer_callback import ExportableState

    class Unstorable(tiny.Callback, ExportableState):
        trained = False

        def on_step_end(self, args, state, control, **kwargs):
            self.trained = True
            on_step()

        def state(self):
            if self.trained and how == "raises":
                raise RuntimeError("this state is not JSON serializable")
            return {"args": {}, "attributes": {"x": torch.tensor(1) if self.trained else 1}}

    return Unstorable


@pytest.mark.parametrize("op", ["stop", "clone", "delete"])
def test_an_op_on_a_run_that_cannot_be_saved_tells_of_the_failure(experiment, op):
    exp, asked = experiment(), []
    how = {"warm": True} if op == "clone" else {}
    ask = lambda: asked or asked.append(getattr(exp, op)(1, **how))  # noqa: E731

    exp.run_fit(
        config(model={"callbacks": [unstorable("raises", ask)]}, max_steps=500),
        tiny.create_model,
        tiny.sft_rows(4),
        num_chunks=1,
    )
    exp.wait(60)

    assert "not JSON serializable" in exp.run(1).error and exp.run(1).trace
    if op == "delete":  # it is gone as it was asked
        assert asked[0].wait(30).status == "applied" and exp.run(1).status == "deleted"
    else:
        with pytest.raises(OpError, match=r"run 1 failed as it was saved: .*not JSON serializable"):
            asked[0].wait(30)
        assert exp.run(1).status == "failed" and len(exp.runs) == 1


@pytest.mark.parametrize("how", ["gives a tensor", "raises"])
def test_callback_state_that_cannot_be_stored_costs_its_run_alone(experiment, how):
    exp = experiment()

    exp.run_fit(
        [config(model={"callbacks": [unstorable(how)]}, max_steps=2), config(max_steps=2)],
        tiny.create_model,
        tiny.sft_rows(4),
        num_chunks=1,
        block=True,
    )

    assert [run.status for run in exp.runs] == ["failed", "completed"]
    assert "not JSON serializable" in exp.run(1).error and exp.status == "idle"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"max_length": 2}, r"3 rows|all .*rows|no rows"),
        ({"per_device_train_batch_size": 8, "dataloader_drop_last": True}, "dataloader_drop_last"),
    ],
)
def test_a_run_without_a_single_step_fails_alone_and_says_why(experiment, given, text):
    exp = experiment()

    exp.run_fit(
        [config(**given), config()], tiny.create_model, tiny.sft_rows(3), num_chunks=1, block=True
    )

    assert [run.status for run in exp.runs] == ["failed", "completed"]
    assert re.search(text, exp.run(1).error), exp.run(1).error


# ---- clones ----


def reward_short(completions, **kwargs):
    return [-float(len(c)) for c in completions]


class Counts(tiny.Callback):
    def on_step_end(self, args, state, control, **kwargs):
        SEEN.setdefault("steps", []).append(state.global_step)


@pytest.mark.slow
@pytest.mark.parametrize("warm", [False, True])
def test_a_clone_has_every_field_of_its_parent_but_the_changed_one(experiment, warm):
    SEEN.clear()
    parent = RFModelConfig(
        "tiny",
        peft_config=lora(),
        reward_funcs=[tiny.reward_length, reward_short],
        callbacks=[Counts],
        training_args=RFGRPOConfig(
            learning_rate=1e-2,
            per_device_train_batch_size=4,
            num_generations=2,
            max_completion_length=5,
            temperature=0.7,
            max_steps=7,
            logging_steps=1,
        ),
    )
    exp = experiment()
    cells = (parent, tiny.create_model, tiny.grpo_rows(8))
    clones = once(
        exp,
        1,
        3,
        lambda: [exp.clone(1, {}, warm=warm), exp.clone(1, {"learning_rate": "3e-4"}, warm=warm)],
    )
    exp.run_fit(*cells, num_chunks=2, block=True)
    same, changed = [handle.wait(30).run_id for handle in clones[0]]
    exp.wait()

    mine = exp._fit.configs
    assert mine[same] == mine[1]
    assert mine[changed].model.reward_funcs == [tiny.reward_length, reward_short]
    assert mine[changed].model.training_args.learning_rate == 3e-4
    for run in (exp.run(same), exp.run(changed)):
        assert run.status == "completed", run.trace
        assert run.facts.step == 7
        row = [row for row in run.rows if "loss" in row][-1]
        assert {"rewards/reward_length/mean", "rewards/reward_short/mean"} <= set(row)
    assert SEEN["steps"].count(7) == 3
    assert steps_of(exp.run(same)) == list(range(4 if warm else 1, 8))

    exp.end()
    exp = experiment()
    exp.run_fit(*cells, num_chunks=2, block=True)
    assert exp._fit.configs[changed] == mine[changed]
    assert exp.clone(1, {"learning_rate": 3e-4}, warm=warm).wait(30).run_id == changed
    assert len(exp.runs) == 3


# ---- bad input ----


def good():
    return {
        "config_group": config(),
        "create_model_fn": tiny.create_model,
        "train_dataset": tiny.sft_rows(4),
        "num_chunks": 1,
    }


def dataset_dict():
    from datasets import Dataset, DatasetDict

    return DatasetDict({"train": Dataset.from_list(tiny.sft_rows(4))})


def stream(rows=64):
    from datasets import IterableDataset

    return IterableDataset.from_generator(lambda: iter(tiny.sft_rows(rows)))


REFUSED = {
    "no config": ({"config_group": None}, ConfigError, "RFModelConfig"),
    "no rows": (
        {"train_dataset": []},
        DataError,
        r"train_dataset must be a datasets.Dataset, a list of dicts or a DataFrame, got list "
        "without rows",
    ),
    "no data": ({"train_dataset": None}, DataError, r"train_dataset must be .* got NoneType"),
    "a path": ({"train_dataset": "rows.jsonl"}, DataError, r"train_dataset must be .* got str"),
    "empty eval data": ({"eval_dataset": []}, DataError, "eval_dataset"),
    "splits": (
        {"train_dataset": dataset_dict},
        DataError,
        r"train_dataset is a DatasetDict with the splits train; give one of them, for example "
        r"train_dataset=data\['train'\]",
    ),
    "eval without data": (
        {"config_group": config(eval_strategy="epoch")},
        ConfigError,
        r"run 1: .*eval_strategy.* needs an eval_dataset; give one to run_fit, or leave "
        "eval_strategy out",
    ),
    "trainer argument": (
        {"config_group": config(model={"optimizer_and_so_on": 1})},
        ConfigError,
        r"run 1: SFTTrainer has no argument 'optimizer_and_so_on'; it takes .*peft_config",
    ),
    "isolation": (
        {"isolation": "strict"},
        ConfigError,
        r'isolation must be "mark" or "cells", got \'strict\'',
    ),
    "seed text": ({"seed": "x"}, ConfigError, r"seed must be a whole number >= 0, got 'x'"),
    "seed": ({"seed": -1}, ConfigError, r"seed must be a whole number >= 0, got -1"),
    "seed float": ({"seed": 1.5}, ConfigError, r"seed must be a whole number >= 0, got 1\.5"),
    "huge seed": ({"seed": 2**40}, ConfigError, "seed must be"),
    "num_chunks": ({"num_chunks": 0}, ConfigError, "num_chunks must be a whole number >= 1, got 0"),
    "num_chunks text": ({"num_chunks": "4"}, ConfigError, "num_chunks must be .* got '4'"),
    "both": ({"chunk_size": 2}, ConfigError, r"give num_chunks or chunk_size \(rows\), not both"),
    "both names": (
        {"num_chunks": 2, "num_shards": 4},
        ConfigError,
        "num_shards",
    ),
    "slice_steps": ({"slice_steps": 0}, ConfigError, "slice_steps must be .* >= 1, got 0"),
    "slice_seconds": (
        {"slice_seconds": math.inf},
        ConfigError,
        "slice_seconds must be a number over 0, got inf",
    ),
    "weight": ({"weight": 0}, ConfigError, "weight must be a number over 0, got 0"),
    "keep_checkpoints": (
        {"keep_checkpoints": 0},
        ConfigError,
        "keep_checkpoints must be a whole number >= 1, got 0",
    ),
    "eval_rows": ({"eval_rows": -1}, ConfigError, "eval_rows must be a whole number >= 0, got -1"),
    "no function": (
        {"create_model_fn": "tiny"},
        ConfigError,
        r"create_model_fn must be a function \(model_config\) -> \(model, tokenizer\), got 'tiny'",
    ),
    "trainer type": ({"trainer_type": "PPO"}, ConfigError, "PPO"),
    "stream": (
        {"train_dataset": stream},
        ConfigError,
        "run 1: a streaming train_dataset needs max_steps in its training_args",
    ),
    "stream and no chunks": (
        {"train_dataset": stream, "config_group": config(max_steps=2), "num_chunks": 0},
        ConfigError,
        "num_chunks must be a whole number >= 1, got 0",
    ),
    "stream and rows": (
        {
            "train_dataset": stream,
            "config_group": config(max_steps=2),
            "num_chunks": None,
            "chunk_size": 2,
        },
        ConfigError,
        "chunk_size",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_in_the_cell_and_nothing_starts(experiment, case):
    changes, error, text = REFUSED[case]
    changes = {k: v() if v in (dataset_dict, stream) else v for k, v in changes.items()}
    exp = experiment()

    with pytest.raises(error, match=text) as caught:
        exp.run_fit(**{**good(), **changes})

    assert "\n" not in str(caught.value)
    assert exp.status == "empty" and len(exp.runs) == 0 and exp.events == []
    assert {p.name for p in exp.folder.iterdir()} <= {"events.jsonl", "lock"}
    assert (exp.folder / "events.jsonl").stat().st_size == 0
    assert not [t for t in threading.enumerate() if t.name.startswith("rapidfire-run")]


def test_after_refusals_the_corrected_cell_trains(experiment):
    exp = experiment()
    for case in ("no rows", "seed", "num_chunks", "eval without data"):
        changes, error, _ = REFUSED[case]
        with pytest.raises(error):
            exp.run_fit(**{**good(), **changes})

    exp.run_fit(**{**good(), "config_group": config(max_steps=1)}, block=True)

    assert exp.run(1).status == "completed" and len(exp.runs) == 1


@pytest.mark.parametrize(
    ("rows", "batch", "ends"), [(24, 8, (1, 2, 3)), (6, 2, (1, 2, 3)), (3, 1, (1, 2, 3))]
)
def test_more_chunks_than_steps_are_reduced_with_a_notice(experiment, capsys, rows, batch, ends):
    exp = experiment()

    exp.run_fit(
        config(per_device_train_batch_size=batch),
        tiny.create_model,
        tiny.sft_rows(rows),
        num_chunks=8,
        block=True,
    )

    assert exp.run(1).facts.chunk_ends == ends and exp.run(1).status == "completed"
    said = capsys.readouterr().out
    assert f"num_chunks=8: an epoch of {rows} rows has only 3" in said and "cut into 3" in said


def test_a_stream_is_trained_to_its_max_steps_in_chunks(experiment):
    exp = experiment()
    runs = [config(max_steps=6), config(seed=2, max_steps=4, per_device_train_batch_size=4)]

    exp.run_fit(runs, tiny.create_model, stream(), num_chunks=3, block=True)

    for run, ends in zip(exp.runs, ((2, 4, 6), (2, 3, 4)), strict=True):
        assert run.status == "completed", run.trace
        assert run.facts.chunk_ends == ends
        assert steps_of(run) == list(range(1, ends[-1] + 1))


def test_a_streaming_run_stopped_and_resumed_goes_on_where_it_was(experiment):
    exp = experiment()
    once(exp, 1, 3, lambda: exp.stop(1))
    runs = [config(max_steps=6, run_name=name) for name in ("stopped", "whole")]

    exp.run_fit(runs, tiny.create_model, stream(), num_chunks=3, block=True)
    exp.resume(1).wait(30)
    exp.wait()

    assert steps_of(exp.run(1)) == [1, 2, 3, 4, 5, 6]
    assert losses_of(exp.run(1)) == losses_of(exp.run(2))
    assert exp.run(1).exact and exp.run(2).exact


def told_by(target, folder):
    """What a process of its own has written down when it ends."""
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=target, args=(str(folder), sys.path))
    process.start()
    process.join(180)
    return json.loads((folder / "told").read_text())


def _ends_with_a_full_disk(root, path):
    sys.path[:] = path
    both = [Experiment(name, root=root) for name in ("full", "good")]
    trained = [threading.Event() for _ in both]
    for exp, event in zip(both, trained, strict=True):
        exp.run_fit(
            [config(max_steps=100_000, logging_steps=1)],
            tiny.create_model,
            tiny.sft_rows(4),
            num_chunks=1,
        )
        exp._opened.log.subscribe(lambda e, event=event: e.kind == "logged" and event.set())
    assert all(event.wait(60) for event in trained)

    def full():
        raise OSError(errno.ENOSPC, "No space left on device")

    engine()._fits[0].executor.flush = full
    engine().shut_down(60)
    found = [bool(list(exp.folder.glob("runs/1/checkpoints/checkpoint-*"))) for exp in both]
    alerts = [e.data["text"] for e in both[0].events if e.kind == "alert"]
    Path(root, "told").write_text(json.dumps([found, alerts]))
    os._exit(0)


@pytest.mark.slow
def test_a_full_disk_of_one_experiment_keeps_no_other_from_being_saved_as_python_ends(tmp_path):
    found, alerts = told_by(_ends_with_a_full_disk, tmp_path)

    assert found[1]
    assert any("No space left on device" in text for text in alerts)


def _cannot_open(root, path):
    sys.path[:] = path
    exp = Experiment("exp", root=root)
    (exp.folder / "runs").mkdir()
    (exp.folder / "runs" / "1").write_text("in the way")
    exp.run_fit(
        [config(max_steps=1), config(max_steps=1, seed=2)],
        tiny.create_model,
        tiny.sft_rows(4),
        num_chunks=1,
    )
    try:
        exp.wait(10)
        told = ""
    except (TimeoutError, ExperimentError) as error:
        told = repr(error)
    Path(root, "told").write_text(json.dumps([told, *[[r.status, r.error] for r in exp.runs]]))
    os._exit(0)


@pytest.mark.slow
def test_a_run_that_cannot_open_its_folder_fails_and_nobody_waits_for_ever(tmp_path):
    told, first, second = told_by(_cannot_open, tmp_path)

    assert "TimeoutError" not in told
    assert first[0] == "failed" or "disk failed" in told
    assert "File exists" in first[1] + told
    assert second[0] == "completed" or "disk failed" in told
