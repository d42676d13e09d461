"""Many ops at once, from many threads; and runs of other trainers stopped in the middle."""

import random
import threading

import pytest
import tiny
from oracle import assert_same, plain, sliced
from test_ops import at, config

from rapidfire_jupyter import RFDPOConfig, RFGRPOConfig, RFLoraConfig, RFModelConfig
from rapidfire_jupyter.errors import ConfigError, OpError
from rapidfire_jupyter.state import State, apply


def test_nobody_who_asks_waits_for_the_step_in_flight(experiment):
    exp = experiment()
    in_step, go_on = threading.Event(), threading.Event()

    class Blocks(tiny.Callback):
        def on_substep_end(self, args, state, control, **kwargs):
            in_step.set()
            assert go_on.wait(60)

    blocked = config(gradient_accumulation_steps=2).copy(callbacks=[Blocks])
    exp.run_fit([blocked, config()], tiny.create_model, tiny.sft_rows(16), num_chunks=2)
    assert in_step.wait(60)

    handles = [exp.stop(2), exp.boost(1, 3), exp.clone(2, {"learning_rate": 1e-3}), exp.pause_all()]
    assert {h.status for h in handles} == {"pending"} and len(exp.results()) == 0
    go_on.set()
    for handle in handles:
        handle._done.wait(60)
    exp.resume_all().wait(60)
    exp.wait(120)

    assert [h.status for h in handles] == ["applied"] * 4
    assert [r.status for r in exp.runs] == ["completed", "stopped", "completed"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_five_hundred_random_ops_leave_every_run_in_a_legal_state(experiment, seed):
    exp = experiment()
    exp.run_fit(
        [config(seed=s, num_train_epochs=1) for s in (1, 2, 3)],
        tiny.create_model,
        tiny.sft_rows(48),
        tiny.sft_rows(60)[50:],
        num_chunks=6,
    )
    handles = []
    asks = {
        "stop": lambda run, _: exp.stop(run),
        "resume": lambda run, _: exp.resume(run),
        "boost": lambda run, chance: exp.boost(run, chance.choice([1, 2, 5])),
        "clone": lambda run, chance: exp.clone(run, {}, warm=chance.random() < 0.5, again=True),
        "delete": lambda run, _: exp.delete(run),
        "undelete": lambda run, _: exp.undelete(run),
        "pause": lambda *_: exp.pause_all(),
        "go": lambda *_: exp.resume_all(),
    }

    def ask(number):
        chance = random.Random(seed * 10 + number)
        for _ in range(125):
            run = chance.randint(1, 5)
            kind = chance.choices(
                ["stop", "resume", "boost", "clone", "delete", "undelete", "pause", "go"],
                [20, 30, 20, 1, 2, 6, 8, 12],
            )[0]
            try:
                handles.append(asks[kind](run, chance))
            except (OpError, ConfigError):
                continue  # an unknown run is refused before it is an op

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    exp.resume_all().wait(120)
    for run in exp.runs:
        if run.status in ("stopped", "failed"):
            run.resume()
    exp.wait(200)

    assert not [h for h in handles if h.status == "pending"]
    assert not [h for h in handles if h.status == "refused" and "Error" in h.reason]
    assert {r.status for r in exp.runs} <= {"completed", "deleted", "stopped"}, [
        (r.status, r.error) for r in exp.runs
    ]
    asked = [e for e in exp.events if e.kind == "op"]
    assert len(asked) >= len(handles)
    replayed = State()
    for event in exp.events:
        replayed = apply(replayed, event)
    assert replayed == exp.state
    for run in exp.runs:
        steps = [r["step"] for r in run.rows if "loss" in r]
        first = run.facts.clone_step or 0
        if run.status == "completed":
            assert steps == list(range(first + 1, 25)), (run, steps)


def test_stopped_dpo_and_grpo_runs_go_on_as_plain_trl(experiment, tmp_path):
    lora = RFLoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj"])
    dpo = RFModelConfig(
        "tiny",
        peft_config=lora,
        training_args=RFDPOConfig(
            learning_rate=1e-2, per_device_train_batch_size=2, logging_steps=2, num_train_epochs=2
        ),
    )
    grpo = RFModelConfig(
        "tiny",
        peft_config=lora,
        reward_funcs=[tiny.reward_length],
        training_args=RFGRPOConfig(
            learning_rate=1e-2,
            per_device_train_batch_size=4,
            num_generations=2,
            num_iterations=2,
            max_completion_length=4,
            logging_steps=1,
            num_train_epochs=2,
        ),
    )
    first, second = experiment("dpo"), experiment("grpo")
    stops = [at(first, 1, 6, lambda: first.stop(1)), at(second, 1, 11, lambda: second.stop(1))]
    first.run_fit(dpo, tiny.create_model, tiny.dpo_rows(10), num_chunks=2)
    second.run_fit(grpo, tiny.create_model, tiny.grpo_rows(8), num_chunks=2)

    for exp, stop in zip((first, second), stops, strict=True):
        exp.wait(90)
        assert exp.run(1).status == "stopped", exp.run(1).trace
        assert (
            stop[0].step % 2 == 0
        )  # GRPO's buffer is in no checkpoint: it stops where it is empty
        exp.resume(1)
        exp.wait(90)
        assert_same(sliced(exp.run(1)), plain(exp.run(1), tmp_path / f"plain-{exp.name}"), exp.name)
