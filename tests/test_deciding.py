"""Policies and monitors at work on real training: their ops, crashes, people, dry runs."""

import multiprocessing
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

import pytest
import tiny
from oracle import assert_same, sliced

from rapidfire_jupyter import (
    CloneBest,
    Experiment,
    Halving,
    Phase,
    RFGridSearch,
    RFLoraConfig,
    RFModelConfig,
    RFSFTConfig,
    Slowdown,
    Threshold,
    engine,
    samples,
    showing,
    webhooks,
)
from rapidfire_jupyter.choices import List
from rapidfire_jupyter.decisions import of_event
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.ledger import Ledger
from rapidfire_jupyter.policies import decide_all
from rapidfire_jupyter.repeats import calibrated, noise_floor
from rapidfire_jupyter.state import State, apply
from rapidfire_jupyter.training import session
from rapidfire_jupyter.waiting import until

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "transformers", "trl", "peft", "datasets", "tiny"])
RATES = [3e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2]
ASKED = {"generate_rows": 6, "max_new_tokens": 6, "eval_budget": 1.0}


def grid(rates=RATES, callbacks=(), **given):
    args = {"per_device_train_batch_size": 4, "logging_steps": 1, "num_train_epochs": 2, **given}
    config = RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"]),
        training_args=RFSFTConfig(learning_rate=List(rates), **args),
        callbacks=list(callbacks),
    )
    return RFGridSearch(config, "SFT")


def cells(exp, search=None, policies=(), rows=48, wait=True, **given):
    """The notebook: a grid of tiny runs with policies, until nothing is left to train."""
    exp.run_fit(
        search or grid(),
        tiny.create_model,
        tiny.sft_rows(rows),
        tiny.sft_rows(rows + 12)[rows:],
        num_chunks=4,
        policies=list(policies),
        **given,
    )
    return exp.wait(300) if wait else exp


def ops(exp, by="policy:"):
    return [e for e in exp.events if e.kind == "op" and e.data["by"].startswith(by)]


def stops(event):
    """Whether policies decide to stop a run."""
    if event.kind != "decisions":
        return False
    return any(d.op is not None and d.op.kind == "stop" for d in of_event(event))


def owing(exp):
    """Runs that rest at a chunk end without answers there."""
    ended = [r for r in exp.state.runs.values() if r.step in r.chunk_ends]
    return [r.id for r in ended if r.step not in samples.steps(exp.run(r.id).folder)]


def replayed(exp):
    """The decisions of an experiment, taken anew from what was known at each."""
    state, ledger = State(), Ledger()
    found = []
    for event in exp.events:
        if event.kind == "decisions":
            policies = exp._fit.oversight.policies
            new = decide_all(policies, state, ledger.rows, ledger.memory, ledger.measures, 42)
            found.append(([(d.policy, d.key, d.op, d.reason) for d in new], event))
        state = apply(state, event)
        ledger.read([event])
    return found


def test_halving_stops_the_losers_of_a_real_grid_and_the_winner_finishes(experiment):
    exp = cells(experiment(), policies=[Halving(eta=2)])

    stopped = [run.id for run in exp.runs if run.status == "stopped"]
    done = [run for run in exp.runs if run.status == "completed"]
    finals = {run.id: run.rows[-2].get("eval_loss") for run in done}
    assert len(stopped) >= 3 and {1, 2} <= set(stopped)
    assert {e.run for e in ops(exp) if e.data["kind"] == "stop"} == set(stopped)
    assert all("eval_loss" in e.data["reason"] for e in ops(exp))
    assert all(exp.state.runs[i].step < exp.state.runs[i].total_steps for i in stopped)
    assert done and all(finals)
    for again, event in replayed(exp):
        assert again == [(d.policy, d.key, d.op, d.reason) for d in of_event(event)]


def test_a_run_that_a_policy_stops_answers_first_as_it_would_without_it(experiment):
    alone = cells(experiment("alone"), **ASKED)
    exp = cells(experiment("judged"), policies=[Halving(eta=2)], **ASKED)

    stopped = [run for run in exp.state.runs.values() if run.status == "stopped"]
    assert len(stopped) >= 3
    for run in stopped:
        assert run.step in run.chunk_ends
        assert samples.read(exp.run(run.id).folder, run.step) == samples.read(
            alone.run(run.id).folder, run.step
        )
        answered = [
            e.seq
            for e in exp.events
            if e.kind == "logged" and e.run == run.id and e.data["source"] == "generation"
        ]
        [gone] = [e.seq for e in ops(exp) if e.run == run.id and e.data["kind"] == "stop"]
        assert answered[-1] < gone
        # What the answers took is told as a slice without steps.
        told = [e for e in exp.events if e.kind == "slice_ended" and e.run == run.id]
        last = next(e for e in told if answered[-1] < e.seq < gone)
        assert last.data["steps"] == 0 and last.data["eval_seconds"] > 0


class Hanging(tiny.Callback):
    """Waits at its sixth step until somebody noticed."""

    noticed = threading.Event()

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 5:
            assert self.noticed.wait(60)


def test_a_slice_that_hangs_is_told_while_it_hangs(experiment, monkeypatch):
    monkeypatch.setattr(session, "LOOK_SECONDS", 0.05)
    exp = experiment()

    cells(
        exp,
        grid([1e-3], [Hanging()], num_train_epochs=1),
        rows=32,
        monitors=[Slowdown(stall=0.0, stall_s=1.0)],
        on_alert=lambda alert: Hanging.noticed.set(),
    )

    alert = next(e for e in exp.events if e.kind == "alert")
    assert alert.run == 1 and alert.data["kind"] == "slowdown: stall"
    assert alert.data["text"].startswith("its slice has trained for ")
    assert exp.run(1).status == "completed" and exp.run(1).exact


def test_policies_judge_answers_before_any_run_trains_on(experiment):
    exp = cells(
        experiment(),
        grid(RATES[1:5]),
        policies=[Halving(eta=2, metric="eval_chrf", first=0.25)],
        **ASKED,
    )

    first = next(e for e in exp.events if e.kind == "decisions")
    before = [e for e in exp.events if e.seq < first.seq and e.kind == "advanced"]
    assert {e.run: e.data["step"] for e in before} == {1: 6, 2: 6, 3: 6, 4: 6}
    answered = [
        e.run
        for e in exp.events
        if e.seq < first.seq
        and e.kind == "logged"
        and "eval_chrf" in e.data["row"]
        and e.data["row"]["step"] == 6
    ]
    assert sorted(answered) == [1, 2, 3, 4]
    assert any(run.status == "stopped" for run in exp.runs)


def test_nobody_waits_for_answers_of_runs_that_were_stopped_while_all_were_paused(experiment):
    exp = experiment()
    paused = []

    def listen(event):
        if event.kind == "logged" and event.data["source"] == "generation" and not paused:
            paused.append(exp.pause_all())

    exp._opened.log.subscribe(listen)
    cells(exp, grid(RATES[:3]), wait=False, **ASKED)
    until(exp, lambda: exp.state.paused, 120)

    for run in (1, 2, 3):
        exp.stop(run).wait(30)

    exp.wait(30)
    assert {run.status for run in exp.runs} == {"stopped"}


def test_an_experiment_that_ends_while_a_policy_stops_its_runs_leaves_the_others_training(
    tmp_path, experiment
):
    exp, other = Experiment("judged", root=tmp_path), experiment("other")
    ending = []

    def listen(event):  # the first of them is about to answer, then to be stopped
        if stops(event) and not ending:
            ending.append(threading.Thread(target=exp.end))
            ending[0].start()
            while engine.engine()._inbox.empty():
                pass

    exp._opened.log.subscribe(listen)
    cells(exp, policies=[Halving(eta=2)], wait=False, **ASKED)
    cells(other, grid(RATES[:1]), wait=False)
    until(exp, lambda: ending, 120)
    ending[0].join(120)
    other.wait(120)

    assert exp.events[-1].kind == "ended" and other.run(1).status == "completed"
    exp = Experiment("judged", root=tmp_path)
    cells(exp, policies=[Halving(eta=2)], **ASKED)
    decided = [d.op.run for e in exp.events if stops(e) for d in of_event(e) if d.op is not None]
    assert [e.run for e in ops(exp)] == decided
    assert owing(exp) == []
    exp.end()


def test_a_person_who_resumes_a_stopped_run_overrules_the_policy(experiment):
    exp = cells(experiment(), policies=[Halving(eta=2)])
    run = next(e.run for e in ops(exp))

    exp.resume(run).wait(30)
    exp.wait(120)

    assert exp.run(run).status == "completed"
    assert len([e for e in ops(exp) if e.run == run]) == 1


def test_undo_takes_back_what_a_person_did_and_leaves_what_policies_did(experiment):
    exp = experiment()
    cells(exp, grid(RATES[:4]), [Halving(eta=2)], wait=False)
    exp.boost(4, 3).wait(60)
    exp.wait(120)

    undone = exp.undo().op

    assert ops(exp) and (undone.kind, undone.run) == ("undo", None)
    exp.wait(30)
    taken = exp.events[-1].data
    assert (taken["kind"], taken["args"], exp.events[-1].run) == ("boost", {"weight": 1.0}, 4)


def test_a_dry_run_tells_what_would_be_done_and_does_nothing(experiment):
    exp = cells(experiment(), policies=[Halving(eta=2)], dry_run=True)
    told = exp.decisions()

    assert all(run.status == "completed" for run in exp.runs)
    assert ops(exp) == []
    assert told.dry_run.all() and (told.op == "stop").sum() >= 3
    assert not told[told.op == "stop"].run.duplicated().any()


def test_what_was_decided_in_a_dry_run_does_not_bind_the_policies_later(experiment):
    exp = experiment()
    cells(exp, grid(RATES[1:3]), [Threshold(limit=0.1, keep_best=False)], dry_run=True, wait=False)
    until(exp, lambda: len(exp.decisions()) > 0, 60)

    cells(exp, grid(RATES[1:3]), [Threshold(limit=0.1, keep_best=False)])

    assert {run.status for run in exp.runs} == {"stopped"}


def test_runs_go_on_where_the_clones_that_would_replace_them_cannot_be_made(experiment):
    exp = experiment()
    impossible = {"name": "long", "clone": {"changes": {"max_steps": 10**9}}}
    phases = [{"name": "short", "until": 0.5}, impossible]

    cells(exp, grid([1e-2, 3e-2]), phases=phases)

    refused = [(e.data["kind"], e.data["outcome"]) for e in ops(exp)]
    assert ("clone", "refused") in refused and ("stop", "refused") in refused
    assert {run.status for run in exp.runs} == {"completed"}


def test_run_all_attaches_and_policies_act_once(experiment):
    exp = experiment()
    cells(exp, policies=[Halving(eta=2)], wait=False)
    cells(exp, policies=[Halving(eta=2)])
    once = [(e.run, e.data["kind"]) for e in ops(exp)]

    cells(exp, policies=[Halving(eta=2)])

    assert [(e.run, e.data["kind"]) for e in ops(exp)] == once == list(dict.fromkeys(once))


# ---- switches ----


def held(exp, search, step=3, **given):
    """The notebook with training paused once run 1 has come to a step."""
    paused = []

    def listen(event):
        here = event.kind == "logged" and event.run == 1 and event.data["row"]["step"] == step
        if here and not paused:
            paused.append(exp.pause_all())

    exp._opened.log.subscribe(listen)
    cells(exp, search, wait=False, **given)
    until(exp, lambda: exp.state.paused, 120)


def test_a_policy_is_switched_on_while_training_goes_on_and_stays_on_in_the_next_kernel(
    tmp_path,
):
    exp = Experiment("exp", root=tmp_path)
    held(exp, grid(RATES[:3]))

    done = exp.policy("threshold", "on", limit=0.1, keep_best=False).wait(60)
    again = exp.policy("threshold", "on").wait(60)
    exp.end()
    exp = Experiment("exp", root=tmp_path)
    cells(exp, grid(RATES[:3]), wait=False)
    exp.resume_all().wait(60)
    exp.wait(120)

    assert (done.status, again.status) == ("applied", "already")
    assert {run.status for run in exp.runs} == {"stopped"}
    assert {e.data["by"] for e in ops(exp)} == {"policy:threshold"}
    row = exp.policies().loc["threshold"]
    assert (row["mode"], row["done"]) == ("on", "stop 3")
    assert row["settings"] == "Threshold(limit=0.1, keep_best=False)"
    exp.end()
    later = Experiment("exp", root=tmp_path)
    assert later.policies().loc["threshold", "mode"] == "on"
    later.end()


def test_an_experiment_that_is_only_looked_at_shows_its_policies_as_they_were(experiment):
    exp = experiment()
    exp._opened.log.append("fit_started", runs=[], fit={})
    exp._opened.log.append("overseen", policies={"halving": "Halving()"}, dry_run=True)

    shown = showing.actions(exp).more["policies"]({}).data["policies"]

    known = {one["key"]: (one["mode"], one["given"]) for one in shown}
    assert known["halving"] == ("dry-run", True) and known["outliers"] == ("off", False)


def test_a_policy_that_only_tells_acts_once_it_is_switched_on(experiment):
    exp = experiment()
    limit = Threshold(limit=0.1, keep_best=False)
    told = []
    exp._opened.log.subscribe(
        lambda e: told.append(exp.policy("threshold")) if e.kind == "decisions" and not told else 0
    )

    cells(exp, grid(RATES[1:3]), [limit], dry_run=True)

    assert [h.status for h in told] == ["applied"]
    assert {run.status for run in exp.runs} == {"stopped"}
    assert exp.decisions().dry_run.tolist()[0] and not exp.decisions().dry_run.tolist()[-1]


def test_a_policy_that_is_switched_off_does_nothing_and_tells_what_it_would_do(experiment):
    exp = experiment()
    limit = Threshold(limit=0.1, keep_best=False)
    held(exp, grid(RATES[1:3]), step=1, policies=[limit])

    exp.policy("threshold", "off", by="panel").wait(60)
    exp.resume_all()
    until(exp, lambda: min(r.chunk for r in exp.state.runs.values()) >= 1, 120)
    exp.pause_all().wait(60)
    exp.resume_all().wait(60)
    would = showing.actions(exp).more["policies"]({"would": "threshold"}).data["would"]
    exp.wait(120)

    assert ops(exp) == [] and {run.status for run in exp.runs} == {"completed"}
    assert len(would) >= 1 and "stop run" in would[0] and "is above 0.1 after chunk" in would[0]
    exp.undo().wait(60)
    assert exp.state.policy("threshold")["mode"] == "off"  # the last op was resume_all


def test_the_panel_shows_and_switches_policies_and_magic_does_the_same(experiment):
    from rapidfire_jupyter.magics import run_magic

    exp = experiment()
    held(exp, grid(RATES[1:3]), policies=[Halving(eta=2)])
    asked = showing.actions(exp)

    order = {"name": "budget", "mode": "on", "settings": {"seconds": 9e9}}
    asked.order("policy", None, order).wait(60)
    run_magic("policy halving dry-run eta=3", None, {"exp": exp})
    until(exp, lambda: exp.state.policy("halving")["mode"] == "dry-run", 60)
    shown = {one["key"]: one for one in asked.more["policies"]({}).data["policies"]}

    assert shown["budget"]["mode"] == "on" and not shown["budget"]["given"]
    assert shown["halving"]["mode"] == "dry-run" and shown["halving"]["given"]
    settings = {one["name"]: one["value"] for one in shown["halving"]["settings"]}
    assert settings["eta"] == 3 and shown["threshold"]["mode"] == "off"
    with pytest.raises(ConfigError, match="a budget needs"):
        exp.policy("budget", "on", seconds=None)


PHASES = [
    Phase("screening", rules=(Threshold(limit=5.797, after=1),), until=0.5),
    Phase(
        "refine",
        until=0.75,
        clone=CloneBest(top=2, spread=0.2, changes={"training_args.max_grad_norm": 1.0}),
    ),
    Phase("final", clone=CloneBest(top=1, spread=0, warm=False)),
]


def test_phases_screen_clone_the_best_and_train_the_winner_alone(experiment):
    exp = cells(experiment(), grid([3e-5, 1e-2, 3e-2, 5e-2]), phases=PHASES)

    runs = list(exp.state.runs.values())
    screened = [r for r in runs if r.parent is None]
    refined = [r for r in runs if r.warm]
    final = [r for r in runs if r.parent is not None and not r.warm]
    assert len(screened) == len(refined) == 4 and len(final) == 1
    assert [r.status for r in runs] == ["stopped"] * 8 + ["completed"]
    assert screened[0].step == 3 and screened[2].step == screened[3].step == 12
    assert {r.step for r in refined} == {18}
    assert all(r.changes["training_args.max_grad_norm"] == 1.0 for r in refined)
    assert sorted({r.parent for r in refined}) == [3, 4] and final[0].parent in {5, 6, 7, 8}


def test_the_winner_of_screened_and_perturbed_clones_trains_alone_with_r_drop_and_answers(
    experiment,
):
    clipped = {"training_args.max_grad_norm": 1.0, "training_args.warmup_steps": 0.1}
    phases = [
        Phase("screening", rules=(Threshold(limit=5.797, after=1),), until=0.5),
        Phase(
            "refine", until=0.75, clone=CloneBest(top=2, spread=0.2, both=False, changes=clipped)
        ),
        Phase(
            "final",
            clone=CloneBest(top=1, spread=0, changes={"training_args.rdrop_alpha": 1.0}),
        ),
    ]
    exp = cells(
        experiment(),
        grid([3e-5, 3e-2, 5e-2]),
        phases=phases,
        generate_rows=4,
        max_new_tokens=8,
        eval_budget=1.0,
    )

    runs = list(exp.state.runs.values())
    final = runs[-1]
    assert [r.status for r in runs] == ["stopped"] * 5 + ["completed"]
    refined = [r for r in runs if r.changes.get("training_args.max_grad_norm") == 1.0]
    assert {r.parent for r in refined} <= {2, 3} and len(refined) == 2 and runs[0].step == 3
    assert all(r.config["training_args.warmup_steps"] == 0.1 for r in (*refined, final))
    rates = [r.config["training_args.learning_rate"] for r in refined]
    parents = [exp.state.runs[r.parent].config["training_args.learning_rate"] for r in refined]
    ways = [rate / of for rate, of in zip(rates, parents, strict=True)]
    assert all(way == pytest.approx(0.8) or way == pytest.approx(1.2) for way in ways)

    best = min(refined, key=lambda r: _last(exp, r.id, "eval_loss"))
    assert final.parent == best.id and final.warm and final.clone_step == best.step == 18
    assert final.config["training_args.rdrop_alpha"] == 1.0
    rows = exp.run(final.id).rows
    kept = [row for row in rows if row["step"] > 18 and "rdrop_kl" in row]
    assert [row["step"] for row in kept] == [19, 20, 21, 22, 23, 24]
    alone = [e.run for e in exp.events if e.kind == "slice_started"]
    assert alone[alone.index(final.id) :] == [final.id] * (len(alone) - alone.index(final.id))
    assert "eval_bleu" in exp.results() and _last(exp, final.id, "eval_bleu") is not None
    assert exp.best("eval_bleu").id == final.id  # no run that was stopped beats one that finished


def _last(exp, run, metric):
    return next((row[metric] for row in reversed(exp.run(run).rows) if metric in row), None)


# ---- monitors ----


class Poison(tiny.Callback):
    """Makes the weights NaN at a step."""

    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step == self.step:
            for name, value in model.named_parameters():
                if "lora_B" in name:
                    value.data.fill_(float("nan"))

    def state(self):
        return {"args": {"step": self.step}, "attributes": {}}


def pair(step, **given):
    lora = RFLoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    args = {"per_device_train_batch_size": 4, "logging_steps": 1, "learning_rate": 1e-3, **given}
    return [
        RFModelConfig("tiny", peft_config=lora, training_args=RFSFTConfig(**args), **more)
        for more in ({}, {"callbacks": [Poison(step)]})
    ]


@pytest.mark.parametrize("logging_steps", [1, 100])
def test_a_loss_that_is_no_number_ends_its_run_at_once_and_a_click_goes_on_from_before(
    experiment, logging_steps
):
    told = []
    exp = experiment()
    poisoned = pair(8, num_train_epochs=1, logging_steps=logging_steps)
    cells(exp, poisoned, rows=96, on_alert=told.append)
    alert = next(e for e in exp.events if e.kind == "alert")

    assert (alert.data["kind"], alert.run, alert.data["step"]) == ("non-finite", 2, 9)
    assert exp.run(1).status == "completed" and exp.run(2).status == "failed"
    assert exp.run(2).rows[-1]["step"] == 9 and repr(exp.run(2).rows[-1]["loss"]) == "nan"
    assert exp.run(2).facts.checkpoint_step == 6
    assert exp.alerts().remedies[0][0] == "clone warm with learning rate 0.001 → 0.000333"
    webhooks._waiting.join()
    assert [(a["run"], a["kind"], a["experiment"]) for a in told] == [(2, "non-finite", "exp")]

    args = alert.data["remedies"][0][2]
    clone = exp.clone(2, {**args["changes"], "callbacks": None}, args["warm"]).wait(60).run_id
    exp.wait(120)

    assert exp.run(clone).facts.clone_step == 6 and exp.run(clone).status == "completed"


def test_who_is_told_of_alerts_may_fail_without_harm(experiment):
    def broken(alert):
        raise ValueError("no")

    exp = experiment()
    cells(exp, pair(4), rows=24, on_alert=[broken, "http://127.0.0.1:9/hook"], wait=False)
    until(exp, lambda: sum(e.kind == "note" for e in exp.events) == 2, 120)
    exp.wait(120)

    notes = [e.data["text"] for e in exp.events if e.kind == "note"]
    assert "ValueError: no" in notes[0] and "127.0.0.1" in notes[1]
    assert exp.run(1).status == "completed"


def test_a_disk_that_gets_full_is_told_once_and_slices_tell_what_evaluation_took(
    experiment, monkeypatch
):
    whole = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: whole._replace(free=2**26))
    exp = cells(experiment(), pair(99, num_train_epochs=1), rows=24)

    told = [e.data for e in exp.events if e.kind == "alert"]
    assert [(t["kind"], t["level"]) for t in told] == [("disk", "error")]
    assert told[0]["remedies"][0][:2] == ["pause all runs", "pause_all"]
    slices = [e.data for e in exp.events if e.kind == "slice_ended"]
    assert all(0 < s["eval_seconds"] < s["seconds"] for s in slices)


@pytest.mark.slow
def test_repeated_runs_say_what_a_tie_is_to_policies(experiment):
    exp = cells(experiment(), grid([1e-2, 3e-2]))
    exp.repeatability(2, k=3).wait(120)

    floor, runs = noise_floor(exp.state, Ledger().read(exp.events).rows)
    asked = calibrated([Halving(), Threshold()], floor)

    assert runs == 3 and asked == (Halving(noise=floor), Threshold())


def test_what_training_costs_is_told_after_the_first_pass_and_at_its_end_and_stands_over_the_runs(
    experiment,
):
    exp = experiment()
    held(exp, grid([1e-3, 1e-2]), step=5)
    shown = repr(exp.runs)
    exp.resume_all()
    exp.wait(120)

    known = [(n, e) for n, e in enumerate(exp.events) if e.kind == "cost"]
    assert len(known) == 2
    (place, price), (end, whole) = known
    assert price.data["text"].startswith("2 runs x 24 steps x 0.")
    assert price.data["text"].endswith(" s, if no run is stopped early")
    assert "left" not in price.data["text"]  # it stands in the panel while training goes on
    slices = [e.run for e in exp.events[:place] if e.kind == "slice_ended"]
    assert slices == [1, 2]
    assert shown.startswith("2 runs x 24 steps x 0.") and " left\n" in shown
    assert whole.data["text"].startswith("2 runs x 24 steps x 0.")
    assert whole.data["text"].endswith(" s so far")
    assert not [e for e in exp.events[end:] if e.kind in ("slice_ended", "run_completed")]
    assert repr(exp.runs).startswith(whole.data["text"] + "\n")

    exp.clone(1, {"learning_rate": 3e-3}).wait(60)
    exp.wait(120)
    told = [e.data["text"] for e in exp.events if e.kind == "cost"]
    assert len(told) == 3 and told[-1].startswith("3 runs x 24 steps x 0.")


# ---- crashes ----


def _child(root, path, count):
    sys.path[:] = path
    import torch

    torch.set_num_threads(1)
    from rapidfire_jupyter import operations

    before, seen = operations.act, 0

    def act(fit, op):
        nonlocal seen
        if op.by.startswith("policy:"):
            seen += 1
            if seen == count:
                Path(root, "reached").write_text(str(op))
                os.kill(os.getpid(), signal.SIGKILL)
        return before(fit, op)

    operations.act = act
    exp = Experiment("exp", root=root)
    cells(exp, policies=[Halving(eta=2), CloneBest(top=1, at=(0.5,))])
    exp.end()


def _killed(root, path):
    sys.path[:] = path
    import torch

    torch.set_num_threads(1)
    exp = Experiment("exp", root=root)

    def listen(event):
        if stops(event):
            Path(root, "reached").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    exp._opened.log.subscribe(listen)
    cells(exp, policies=[Halving(eta=2)], **ASKED)


@pytest.mark.slow
def test_killed_before_a_run_that_is_to_be_stopped_has_answered_it_answers_in_the_next_kernel(
    tmp_path,
):
    process = _context.Process(target=_killed, args=(str(tmp_path), sys.path))
    process.start()
    process.join(240)

    exp = Experiment("exp", root=tmp_path)
    cells(exp, policies=[Halving(eta=2)], **ASKED)

    assert (tmp_path / "reached").exists() and process.exitcode == -signal.SIGKILL
    assert sum(run.status == "stopped" for run in exp.runs) >= 3 and owing(exp) == []
    told = [(e.run, e.data["kind"]) for e in ops(exp)]
    assert told == list(dict.fromkeys(told))
    exp.end()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The same cells, never interrupted."""
    import torch

    torch.set_num_threads(1)
    exp = Experiment("exp", root=tmp_path_factory.mktemp("whole"))
    cells(exp, policies=[Halving(eta=2), CloneBest(top=1, at=(0.5,))])
    yield exp
    exp.end()


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 4])
def test_killed_between_a_decision_and_its_ops_the_next_kernel_does_them_once(
    tmp_path, undisturbed, count
):
    process = _context.Process(target=_child, args=(str(tmp_path), sys.path, count))
    process.start()
    process.join(240)

    exp = Experiment("exp", root=tmp_path)
    cells(exp, policies=[Halving(eta=2), CloneBest(top=1, at=(0.5,))])

    assert (tmp_path / "reached").exists() and process.exitcode == -signal.SIGKILL
    told = [(e.data["kind"], e.run, e.data["args"]) for e in ops(exp)]
    assert told == [(e.data["kind"], e.run, e.data["args"]) for e in ops(undisturbed)]
    assert [r.status for r in exp.runs] == [r.status for r in undisturbed.runs]
    for run, whole in zip(exp.runs, undisturbed.runs, strict=True):
        if run.status == "completed":
            assert_same(sliced(run), sliced(whole), run.name)
    exp.end()


# ---- refusals ----


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"policies": "halvin"}, "policies has no 'halvin'; did you mean 'halving'?"),
        ({"policies": [{"threshold": {"limt": 2}}]}, "Threshold has no setting 'limt'; did you"),
        ({"policies": [{"halving": {"eta": "x"}}]}, "Halving: '>' not supported"),
        ({"policies": ["halving", "halving"]}, "policies need names of their own"),
        ({"policies": [3]}, "policies takes Halving, Threshold"),
        ({"monitors": ["spikes"]}, "monitors has no 'spikes'; did you mean 'spike'?"),
        ({"phases": [{"name": "a", "until": 2}]}, "until of phase 'a' must be over 0"),
        ({"dry_run": 1}, "dry_run must be True or False, got 1"),
        ({"on_alert": "ftp://x"}, "on_alert takes a function f(alert) or an http(s) URL"),
        ({"on_alert": "http://"}, "got 'http://'; a URL has a host"),
        ({"on_alert": "https://a b/hook"}, "on_alert takes a function f(alert) or an http(s) URL"),
        ({"on_alert": "https://a:b/"}, "on_alert takes a function f(alert) or an http(s) URL"),
        ({"on_alert": "https://a/ü"}, "as %xx"),
        (
            {"policies": [CloneBest(changes={"formatting_func": print})]},
            "formatting_func must be a value that can be written down",
        ),
    ],
)
def test_wrong_policies_are_refused_in_the_cell(experiment, given, said):
    with pytest.raises(ConfigError) as caught:
        experiment().run_fit(grid(), tiny.create_model, tiny.sft_rows(8), **given)

    assert said in str(caught.value) and "\n" not in str(caught.value)


YAML = """\
experiment: exp
root: {root}
model_name: tiny
create_model_fn: create_model
train_dataset: rows
eval_dataset: eval_rows
peft_config: {{r: 4, target_modules: [q_proj]}}
training_args: {{learning_rate: {{grid: [3e-5, 1e-2]}}, num_train_epochs: 1, logging_steps: 1}}
num_chunks: 2
policies: [{{threshold: {{limit: 0.5, keep_best: false}}}}, halving]
on_alert: hear
as: exp
"""


def test_policies_are_named_in_yaml(tmp_path):
    from rapidfire_jupyter.magics import run_magic

    names = {
        "create_model": tiny.create_model,
        "rows": tiny.sft_rows(16),
        "eval_rows": tiny.sft_rows(20)[16:],
        "hear": print,
    }
    run_magic("run", YAML.format(root=tmp_path), names)
    exp = names["exp"].wait(120)

    assert {run.status for run in exp.runs} == {"stopped"}
    assert exp._fit.oversight.policies == (Threshold(limit=0.5, keep_best=False), Halving())
    assert exp._fit.oversight.listeners == (print,)
    exp.end()


def test_a_wrong_policy_in_yaml_is_refused_with_its_line(tmp_path):
    from IPython.core.error import UsageError

    from rapidfire_jupyter.magics import run_magic

    with pytest.raises(UsageError, match=r"line 11 of the cell: policies has no 'halvin'"):
        wrong = YAML.replace("halving]", "halvin]").format(root=tmp_path)
        run_magic("run", wrong, {"create_model": 1, "rows": [], "eval_rows": [], "hear": print})
