"""Ops: when they act, what they keep, and that nobody else notices."""

import json
import threading

import peft
import pytest
import tiny
import torch
from oracle import assert_same, plain, sliced
from safetensors.torch import load_file

from rapidfire_jupyter import RFDPOConfig, RFLoraConfig, RFModelConfig, RFSFTConfig
from rapidfire_jupyter.errors import ConfigError, OpError
from rapidfire_jupyter.waiting import until


def config(**given):
    args = {"learning_rate": 1e-2, "per_device_train_batch_size": 2, "logging_steps": 1, **given}
    return RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj"]),
        model_kwargs={"dropout": 0.1},
        training_args=RFSFTConfig(**args),
    )


def at(exp, run, step, action, kind="logged"):
    """Call `action` once, when this run logs this step."""
    done = []

    def listen(event):
        here = event.kind == kind and event.run == run and not done
        if here and (event.data.get("row") or event.data).get("step") == step:
            done.append(action())

    exp._opened.log.subscribe(listen)
    return done


def test_a_run_stopped_and_resumed_at_an_odd_moment_equals_plain_trl(experiment, tmp_path):
    exp = experiment()
    stopped = at(exp, 2, 5, lambda: exp.stop(2))

    exp.run_fit(
        [
            config(num_train_epochs=2, gradient_accumulation_steps=2, logging_steps=n)
            for n in (3, 1, 10)
        ],
        tiny.create_model,
        tiny.sft_rows(21),
        num_chunks=4,
    )
    exp.run(2).wait()
    handle = stopped[0].wait(30)
    exp.wait()
    exp.resume(2).wait(30)
    exp.wait()

    assert handle.status == "applied" and handle.step == 5
    for run in exp.runs:
        assert_same(sliced(run), plain(run, tmp_path / f"plain{run.id}"), run.name)


def test_a_stop_during_an_evaluation_acts_at_the_next_batch_and_the_evaluation_is_done_again(
    experiment, tmp_path
):
    exp = experiment()
    handles = []

    class StopInEvaluation(tiny.Callback):
        def on_prediction_step(self, args, state, control, **kwargs):
            if state.global_step == 4 and not handles:
                handles.append(exp.stop(1))

    args = {
        "eval_strategy": "steps",
        "eval_steps": 4,
        "per_device_eval_batch_size": 2,
        "num_train_epochs": 2,
    }
    first = config(**args).copy(callbacks=[StopInEvaluation])
    exp.run_fit(
        [first, config(**args)], tiny.create_model, tiny.sft_rows(12), tiny.sft_rows(40)[30:]
    )
    exp.wait()
    stopped = exp.run(1)

    assert handles[0].step == 4 and stopped.status == "stopped"
    assert not any("eval_loss" in row for row in stopped.rows)
    stopped.resume().wait(30)
    exp.wait()
    assert_same(sliced(exp.run(1)), plain(exp.run(2), tmp_path / "plain"), "stopped in evaluation")


def test_a_warm_clone_without_changes_is_the_parents_continuation(experiment):
    exp = experiment()
    cloned = at(exp, 1, 4, lambda: exp.clone(1, {}, warm=True))

    exp.run_fit(
        config(num_train_epochs=2), tiny.create_model, tiny.sft_rows(12), num_chunks=2, block=True
    )
    cloned[0].wait(30)
    exp.wait()

    assert cloned[0].step == 4
    parent, clone = exp.run(1), exp.run(2)
    assert clone.status == "completed", clone.trace
    assert_same(sliced(clone), sliced(parent), "clone")


def test_a_warm_clone_of_a_dpo_run_keeps_the_parents_reference(experiment):
    exp = experiment()
    dpo = RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(r=4, target_modules=["q_proj"]),
        training_args=RFDPOConfig(
            learning_rate=1e-2, per_device_train_batch_size=2, logging_steps=1
        ),
    )
    cloned = at(exp, 1, 3, lambda: exp.clone(1, {}, warm=True))

    exp.run_fit(dpo, tiny.create_model, tiny.dpo_rows(12), num_chunks=2, block=True)
    cloned[0].wait(30)
    exp.wait()

    assert_same(sliced(exp.run(2)), sliced(exp.run(1)), "clone")


def test_changed_knobs_of_a_warm_clone_are_in_force_from_its_first_step(experiment):
    exp = experiment()
    changes = {"learning_rate": 5e-3, "weight_decay": 0.1, "logging_steps": 5, "eval_steps": 3}
    cloned = at(exp, 1, 6, lambda: exp.clone(1, changes, warm=True))
    parent = config(logging_steps=2, eval_strategy="steps", eval_steps=4, num_train_epochs=2)

    exp.run_fit(parent, tiny.create_model, tiny.sft_rows(20), tiny.sft_rows(40)[30:], block=True)
    cloned[0].wait(30)
    exp.wait()
    clone = exp.run(2)

    logged = [r["step"] for r in clone.rows if "loss" in r]
    evaluated = [r["step"] for r in clone.rows if "eval_loss" in r]
    rates = {r["step"]: r["learning_rate"] for r in clone.rows if "loss" in r}
    groups = torch.load(clone.checkpoint / "optimizer.pt", weights_only=True)["param_groups"]
    assert logged == [10, 15, 20] and evaluated == [9, 12, 15, 18, 20]
    assert rates[10] == pytest.approx(5e-3 * (20 - 9) / 20)
    assert [g["initial_lr"] for g in groups] == [5e-3, 5e-3] and groups[0]["weight_decay"] == 0.1
    assert "training_args.weight_decay" not in exp.run(1).config


def test_a_warm_clone_with_a_larger_rank_computes_the_same_function(experiment):
    exp = experiment()
    changes = {"r": 8, "target_modules": ["q_proj", "v_proj"]}
    cloned = at(exp, 1, 4, lambda: exp.clone(1, changes, warm=True))

    exp.run_fit(
        config(num_train_epochs=2), tiny.create_model, tiny.sft_rows(12), num_chunks=2, block=True
    )
    cloned[0].wait(30)
    exp.wait()
    source = load_file(str(exp.run(2).folder / "source" / "adapter_model.safetensors"))
    exp2 = exp.run(2)

    assert exp2.status == "completed", exp2.trace
    final = load_file(str(exp2.folder / "final" / "adapter_model.safetensors"))
    key = next(k for k in source if "lora_B" in k)
    assert final[key].shape[1] == 8 and source[key].shape[1] == 4
    assert any("v_proj" in k for k in final)


GROWING = {
    "plain": {},
    "dora": {"use_dora": True},
    "bias": {"lora_bias": True},
    "embeddings": {"target_modules": ["q_proj", "embed_tokens"]},
    "embeddings and dora": {"target_modules": ["q_proj", "embed_tokens"], "use_dora": True},
    "rslora": {"use_rslora": True},
}


@pytest.mark.parametrize("name", GROWING)
def test_what_a_larger_adapter_computes_and_its_optimizer_keeps_is_the_parents(experiment, name):
    lora = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], **GROWING[name]}
    exp = experiment()
    stopped = at(exp, 1, 3, lambda: exp.stop(1))
    exp.run_fit(
        config().copy(peft_config=RFLoraConfig(**lora)),
        tiny.create_model,
        tiny.sft_rows(12),
        num_chunks=2,
        block=True,
    )
    stopped[0].wait(30)
    ids = torch.arange(3, 12)[None]  # (1, 9)

    changes = {"r": 8, "target_modules": [*lora["target_modules"], "v_proj"]}
    clone = exp.clone(1, {**changes, "learning_rate": 1e-12}, warm=True).wait(30)
    exp.wait()

    run = exp.run(clone.run_id)
    assert run.status == "completed", run.trace
    with torch.no_grad():
        before, after = (one.load_model()[0].eval()(ids).logits for one in (exp.run(1), run))
    torch.testing.assert_close(after, before, rtol=0, atol=1e-6)
    weights, optimizer, _ = sliced(run)
    moments = {tuple(state["exp_avg"].shape) for state in optimizer["state"].values()}
    assert moments <= {tuple(value.shape) for value in weights.values()}


@pytest.mark.parametrize("init", ["pissa", "olora", "mica", "kasa"])
def test_an_adapter_that_was_made_from_the_base_does_not_grow_warm(experiment, init):
    made = {"kasa_config": peft.KasaConfig()} if init == "kasa" else {"init_lora_weights": init}
    lora = RFLoraConfig(r=4, target_modules=["q_proj"], **made)
    exp = experiment()
    stopped = at(exp, 1, 2, lambda: exp.stop(1))
    exp.run_fit(
        config().copy(peft_config=lora),
        tiny.create_model,
        tiny.sft_rows(12),
        num_chunks=2,
        block=True,
    )
    stopped[0].wait(30)

    for changes in ({"r": 8}, {"lora_alpha": 16}, {"target_modules": ["q_proj", "v_proj"]}):
        with pytest.raises(OpError, match=r"made from the weights it targets.*use warm=False"):
            exp.clone(1, changes, warm=True).wait(30)


def test_a_warm_clone_with_another_batch_size_goes_on_at_the_same_rows(experiment):
    exp = experiment()
    cloned = at(exp, 1, 5, lambda: exp.clone(1, {"per_device_train_batch_size": 4}, warm=True))

    exp.run_fit(
        config(num_train_epochs=2), tiny.create_model, tiny.sft_rows(16), num_chunks=2, block=True
    )
    cloned[0].wait(30)
    exp.wait()
    clone = exp.run(2)

    prepared = next(e for e in exp.events if e.kind == "run_prepared" and e.run == 2)
    assert prepared.data["step"] == 2 and "2 rows are met twice" in prepared.data["notes"][0]
    assert [r["step"] for r in clone.rows if "loss" in r] == [3, 4, 5, 6, 7, 8]


def test_a_warm_clone_keeps_moments_that_are_no_tensors_of_the_parameters_shape(experiment):
    exp = experiment()
    changes = [{"logging_steps": 2}, {"lora_alpha": 16}]
    cloned = at(exp, 1, 4, lambda: [exp.clone(1, one, warm=True) for one in changes])

    exp.run_fit(
        config(num_train_epochs=2, optim="adafactor"),
        tiny.create_model,
        tiny.sft_rows(12),
        num_chunks=2,
        block=True,
    )
    cloned[0][0].wait(30)
    with pytest.raises(OpError, match="lora_alpha scale what the optimizer keeps, and that of 'ad"):
        cloned[0][1].wait(30)
    exp.wait()

    parent, clone = exp.run(1), exp.run(2)
    assert clone.status == "completed", clone.trace
    assert_same((*sliced(clone)[:2], []), (*sliced(parent)[:2], []), "clone")


def test_what_a_warm_clone_cannot_keep_is_refused_with_the_reason_and_offered_cold(experiment):
    exp = experiment()
    exp.run_fit(config(), tiny.create_model, tiny.sft_rows(8), num_chunks=2, block=True)

    with pytest.raises(OpError, match=r"rank r=2 is smaller than the parent's 4.*use warm=False"):
        exp.clone(1, {"r": 2}, warm=True).wait(30)
    with pytest.raises(OpError, match="optim cannot change"):
        exp.clone(1, {"optim": "sgd"}, warm=True).wait(30)
    with pytest.raises(ConfigError, match="learning_rat"):
        exp.clone(1, {"learning_rat": 1e-3})
    for changes in (["r"], "r", {3: 1}):
        with pytest.raises(OpError, match=r"clone takes its changes by name, got .*; write clone"):
            exp.clone(1, changes)
    cold = exp.clone(1, {"r": 2}).wait(30)
    exp.wait()

    assert exp.run(cold.run_id).status == "completed" and exp.run(cold.run_id).parent == 1


def test_clone_and_delete_of_the_same_parent_in_one_go(experiment):
    exp = experiment()
    done = at(exp, 1, 3, lambda: (exp.clone(1, {}, warm=True), exp.delete(1)))

    exp.run_fit(config(), tiny.create_model, tiny.sft_rows(12), num_chunks=2, block=True)
    clone, delete = done[0]
    clone.wait(30)
    delete.wait(30)
    exp.wait()

    assert exp.run(1).status == "deleted" and exp.run(2).status == "completed", exp.run(2).trace
    exp.undelete(1).wait(30)
    exp.wait(60)
    assert exp.run(1).status == "completed"


def test_the_same_clone_twice_is_the_same_run_unless_again(experiment):
    exp = experiment()
    exp.run_fit(config(), tiny.create_model, tiny.sft_rows(8), num_chunks=2, block=True)

    first = exp.clone(1, {"learning_rate": 1e-3}).wait(30)
    same = exp.clone(1, {"learning_rate": "1e-3"}).wait(30)
    other = exp.clone(1, {"learning_rate": 1e-3}, again=True).wait(30)
    exp.wait()

    assert (first.run_id, same.run_id, other.run_id) == (2, 2, 3)
    assert same.status == "already"
    assert exp.run(1).config["training_args.learning_rate"] == 1e-2


def test_a_finished_run_resumed_with_more_epochs_goes_on_along_the_longer_schedule(experiment):
    exp = experiment()
    exp.run_fit(
        config(num_train_epochs=1), tiny.create_model, tiny.sft_rows(8), num_chunks=2, block=True
    )

    with pytest.raises(OpError, match="num_train_epochs="):
        exp.resume(1).wait(30)
    exp.resume(1, num_train_epochs=3).wait(30)
    exp.wait()

    rows = [r for r in exp.run(1).rows if "loss" in r]
    assert [r["step"] for r in rows] == list(range(1, 13))
    assert rows[4]["learning_rate"] == pytest.approx(1e-2 * (12 - 4) / 12)
    assert all(r["learning_rate"] > 0 for r in rows)


def test_a_boosted_run_gets_its_share_of_slices(experiment):
    exp = experiment()
    exp.pause_all()
    boosted = at(exp, 1, 0, lambda: exp.boost(1, 3), kind="run_prepared")

    exp.run_fit(
        [config(), config(seed=1)], tiny.create_model, tiny.sft_rows(24), num_chunks=12, block=True
    )

    assert boosted[0].status == "applied"
    order = [e.run for e in exp.events if e.kind == "slice_started"]
    assert order[:8].count(1) == 6 and order[:8].count(2) == 2


def test_pause_all_stops_training_and_resume_all_goes_on(experiment):
    exp = experiment()
    paused = at(exp, 1, 2, lambda: exp.pause_all())

    exp.run_fit(config(), tiny.create_model, tiny.sft_rows(12), num_chunks=2)
    with pytest.raises(TimeoutError):
        exp.wait(3)
    assert (
        paused[0].status == "applied" and exp.status == "paused" and exp.run(1).status == "paused"
    )
    step = exp.run(1).facts.step
    exp.resume_all().wait(30)
    exp.wait(60)

    assert step == 2 and exp.run(1).status == "completed"


def test_all_runs_stopped_is_not_the_end(experiment):
    exp = experiment()
    exp.run_fit([config(), config(seed=1)], tiny.create_model, tiny.sft_rows(24), num_chunks=8)

    exp.stop(1).wait(60)
    exp.stop(2).wait(60)
    exp.wait(10)
    assert exp.status == "idle" and {r.status for r in exp.runs} == {"stopped"}
    exp.resume(1).wait(30)
    exp.wait(60)

    assert [r.status for r in exp.runs] == ["completed", "stopped"]


def test_every_op_in_every_status_acts_or_is_refused_with_a_sentence(experiment):
    exp = experiment()

    class Fails(tiny.Callback):
        def on_step_end(self, args, state, control, **kwargs):
            raise RuntimeError("no more")

    exp.run_fit(
        [config(), config(seed=1).copy(callbacks=[Fails]), config(seed=2), config(seed=3)],
        tiny.create_model,
        tiny.sft_rows(8),
        num_chunks=1,
    )
    exp.stop(3)
    exp.delete(4)
    exp.wait(60)
    assert [r.status for r in exp.runs] == ["completed", "failed", "stopped", "deleted"]

    handles = []
    for run in (1, 2, 3, 4):
        for ask in (exp.stop, exp.boost, exp.resume):
            handles.append(ask(run))
        for warm in (False, True):
            handles.append(exp.clone(run, {"seed": 40 + run}, warm=warm))
    exp.wait(120)

    assert not [h for h in handles if h.status == "pending"]
    assert not [h for h in handles if h.status == "refused" and not h.reason]
    assert "run 2 has no trained step" in handles[9].reason or handles[9].status == "applied"
    assert len([e for e in exp.events if e.kind == "op"]) == len(handles) + 2


def test_ops_from_many_threads_are_one_event_each(experiment):
    exp = experiment()
    exp.run_fit([config(), config(seed=1)], tiny.create_model, tiny.sft_rows(40), num_chunks=10)
    handles = []

    def ask():
        for _ in range(10):
            handles.extend([exp.stop(1), exp.resume(1), exp.boost(2, 2), exp.boost(2, 1)])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    exp.resume(1).wait(60)
    exp.wait(120)

    assert all(h.status in ("applied", "already") for h in handles)
    assert len([e for e in exp.events if e.kind == "op"]) == 161
    assert [r.status for r in exp.runs] == ["completed"] * 2
    steps = [r["step"] for r in exp.run(1).rows if "loss" in r]
    assert steps == list(range(1, 61))


def test_an_op_on_an_unknown_run_is_refused(experiment):
    exp = experiment()
    exp.run_fit(config(), tiny.create_model, tiny.sft_rows(8), num_chunks=1, block=True)

    with pytest.raises(OpError, match="there is no run 9; runs: 1"):
        exp.stop(9).wait(30)
    with pytest.raises(OpError, match="weight must be a number over 0"):
        exp.boost(1, -1)


def test_events_tell_who_asked_for_what_at_which_step(experiment):
    exp = experiment()
    asked = at(exp, 1, 2, lambda: exp.stop(1, by="policy:test"))
    exp.run_fit(config(), tiny.create_model, tiny.sft_rows(12), num_chunks=2, block=True)

    event = next(e for e in exp.events if e.kind == "op")
    lines = [json.loads(line) for line in (exp.folder / "events.jsonl").read_text().splitlines()]

    assert asked[0].status == "applied"
    assert event.data["by"] == "policy:test" and event.data["step"] == 2
    assert [line["seq"] for line in lines] == list(range(len(lines)))


def test_a_warm_clone_during_a_chunk_evaluation_leaves_parent_and_clone_as_undisturbed(experiment):
    exp = experiment()
    handles = []

    def seen(prediction):
        if not handles:
            handles.append(exp.clone(1, {}, warm=True))
        return {"seen": 1.0}

    args = {"per_device_eval_batch_size": 1, "num_train_epochs": 2}
    first = config(**args).copy(compute_metrics=seen)
    exp.run_fit(
        [first, config(**args)],
        tiny.create_model,
        tiny.sft_rows(8),
        tiny.sft_rows(20)[16:],
        num_chunks=2,
    )
    exp.wait(90)

    assert handles[0].status == "applied" and handles[0].step == 2
    rows = [[r for r in exp.run(i).rows if "eval_loss" in r] for i in (1, 2)]
    assert [r["step"] for r in rows[0]] == [2, 4, 6, 8]
    assert [r["eval_loss"] for r in rows[0]] == [r["eval_loss"] for r in rows[1]]
    for run in (1, 3):
        assert_same(sliced(exp.run(run)), sliced(exp.run(2)), f"run {run}")


def test_undo_takes_back_the_op_asked_just_before_it(experiment):
    exp = experiment()
    group = [config(num_train_epochs=50), config(num_train_epochs=50, learning_rate=1e-3)]
    exp.run_fit(group, tiny.create_model, tiny.sft_rows(12), num_chunks=3)
    until(exp, lambda: exp.run(2).facts.step > 0, 60)
    clone = exp.clone(1).wait(30)

    exp.stop(2)
    undone = exp.undo().wait(30)

    assert (undone.op.kind, undone.op.run) == ("resume", 2)
    assert exp.run(2).status in ("queued", "running")
    assert exp.run(clone.run_id).status != "deleted"


def test_undo_without_an_op_before_it_is_refused(experiment):
    exp = experiment()
    exp.run_fit(config(), tiny.create_model, tiny.sft_rows(4), num_chunks=1)

    with pytest.raises(OpError, match="no op yet to undo"):
        exp.undo().wait(30)


def test_a_deleted_run_that_is_brought_back_trains_on_as_if_nothing_had_been(experiment):
    exp, other = experiment("deleted"), experiment("left alone")
    group = [config(num_train_epochs=3), config(num_train_epochs=3, learning_rate=3e-3)]
    asked = at(exp, 2, 5, lambda: (exp.delete(2), exp.undo()))

    for one in (exp, other):
        one.run_fit(group, tiny.create_model, tiny.sft_rows(12), num_chunks=2)
        one.wait(120)

    assert [handle.wait(30).status for handle in asked[0]] == ["applied", "applied"]
    assert exp.run(2).status == "completed"
    assert_same(sliced(exp.run(2)), sliced(other.run(2)))


def test_what_is_so_already_is_no_error_when_cells_run_again(experiment):
    exp = experiment()
    exp.run_fit(config(), tiny.create_model, tiny.sft_rows(6), num_chunks=1)
    exp.boost(1, 3).wait(30)
    exp.wait(60)
    exp.resume(1, num_train_epochs=5).wait(30)
    exp.wait(60)

    again = [exp.boost(1, 3).wait(30), exp.resume(1, num_train_epochs=5).wait(30)]

    assert [handle.status for handle in again] == ["already", "already"]


def test_a_warm_clone_of_a_finished_run_says_that_nothing_is_left_to_train(experiment):
    exp = experiment()
    exp.run_fit(config(), tiny.create_model, tiny.sft_rows(6), num_chunks=1, block=True)

    with pytest.raises(OpError, match="nothing is left to train: run 1 has finished"):
        exp.clone(1, {"learning_rate": 1e-3}, warm=True).wait(30)
    longer = exp.clone(1, {"learning_rate": 1e-3, "num_train_epochs": 5}, warm=True).wait(30)
    exp.wait(60)

    assert exp.run(longer.run_id).facts.step > exp.run(1).facts.step


@pytest.mark.parametrize("given", [{"max_steps": 2**70}, {"num_train_epochs": 1e300}])
def test_a_training_without_an_end_is_refused_in_the_cell_and_as_a_clone(experiment, given):
    exp = experiment()

    with pytest.raises(ConfigError, match="over 100,000 chunks; lower num_train_epochs or max_ste"):
        exp.run_fit(config(**given), tiny.create_model, tiny.sft_rows(6), num_chunks=2)
    exp.run_fit(config(), tiny.create_model, tiny.sft_rows(6), num_chunks=2, block=True)
    with pytest.raises(OpError, match="over 100,000 chunks"):
        exp.clone(1, given).wait(30)


@pytest.mark.parametrize("wait", ["op", "experiment", "end"])
def test_a_runs_own_code_cannot_wait_for_training(experiment, wait):
    exp = experiment()

    class Waits(tiny.Callback):
        def on_step_end(self, args, state, control, **kwargs):
            if wait == "op":
                exp.stop(2).wait()
            else:
                exp.wait() if wait == "experiment" else exp.end()

    waits = config(num_train_epochs=2).copy(callbacks=[Waits])
    exp.run_fit([waits, config()], tiny.create_model, tiny.sft_rows(6), num_chunks=1)
    exp.wait(60)

    assert exp.run(1).status == "failed" and "cannot wait for training" in exp.run(1).error
    assert exp.run(2).status in ("completed", "stopped")
