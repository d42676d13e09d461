"""Mixtures in training: exact, aligned, weighed anew by an op, recovered, evaluated by task."""

import json
import multiprocessing
import os
import signal
import sys

import pytest
import tiny
from oracle import assert_same, plain, sliced
from test_exactness import check, lora
from test_ops import at

from rapidfire_jupyter import (
    Experiment,
    List,
    RFDPOConfig,
    RFGridSearch,
    RFGRPOConfig,
    RFKTOConfig,
    RFModelConfig,
    RFOptuna,
    RFRandomSearch,
    RFSFTConfig,
    mix,
)
from rapidfire_jupyter.data.mixing import mixed_rows, tasks_rows
from rapidfire_jupyter.errors import ConfigError, DataError, ExperimentError, OpError
from rapidfire_jupyter.mixture import in_parts
from rapidfire_jupyter.training import checkpoints

ROWS = tiny.sft_rows(30)
EVALS = {"support": tiny.sft_rows(44)[40:], "code": tiny.sft_rows(37)[35:]}
QUIET = {"panel": False, "generate_rows": 0}


def mixture(weights=None):
    return mix({"support": ROWS[:20], "code": ROWS[20:]}, weights)


def config(**given):
    args = {
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 2,
        "num_train_epochs": 1,
        "logging_steps": 1,
        **given,
    }
    return RFModelConfig(
        "tiny",
        peft_config=lora(lora_dropout=0.1),
        model_kwargs={"dropout": 0.1},
        training_args=RFSFTConfig(**args),
    )


def weights_of(exp):
    return [run.config["mixture.weights"] for run in exp.runs]


def test_weights_are_a_choice_of_the_search_and_each_run_equals_plain_trl(experiment, tmp_path):
    exp = experiment()

    exp.run_fit(
        RFGridSearch(
            [
                config(num_train_epochs=2, logging_steps=3),
                config(gradient_accumulation_steps=3, per_device_train_batch_size=3),
            ],
            trainer_type="MTL",
        ),
        tiny.create_model,
        mixture(List([[0.5, 0.5], {"support": 4, "code": 1}])),
        num_chunks=3,
        block=True,
        **QUIET,
    )

    assert weights_of(exp) == [[0.5, 0.5], [0.8, 0.2]] * 2
    assert [run.facts.trainer_type for run in exp.runs] == ["MTL"] * 4
    assert "weights=0.8+0.2" in exp.runs[1].name
    assert list(exp.runs.frame()["mixture.weights"]) == weights_of(exp)
    check(exp, tmp_path)


def test_runs_of_all_weights_meet_as_many_rows_in_a_chunk_whatever_they_drop(experiment, tmp_path):
    exp = experiment()

    exp.run_fit(
        [config(max_length=n, num_train_epochs=2) for n in (12, 512)],
        tiny.create_model,
        mixture(List([[1, 0], [1, 9]])),
        num_chunks=3,
        block=True,
        **QUIET,
    )

    assert {run.facts.chunk_ends for run in exp.runs} == {(5, 10, 15, 20, 25, 30)}
    prepared = [e.data["dropped"] for e in exp.events if e.kind == "run_prepared"]
    assert len(set(prepared)) == 2 and prepared[-1] == 0
    for run in (exp.run(1), exp.run(2)):
        assert_same(sliced(run), plain(run, tmp_path / f"plain{run.id}"), run.name)


def test_one_task_with_all_the_weight_is_the_plain_order_of_that_task(experiment):
    exp, alone = experiment(), experiment("alone")
    only = config(max_steps=10)

    exp.run_fit(only, tiny.create_model, mixture([1, 0]), num_chunks=1, block=True, **QUIET)
    alone.run_fit(only, tiny.create_model, ROWS[:20], num_chunks=1, block=True, **QUIET)

    def ended(one):
        weights, optimizer, rows = sliced(one.runs[0])
        return weights, optimizer, [row.get("loss") for row in rows]

    assert_same(ended(exp), ended(alone))


def test_the_rows_that_are_trained_on_have_the_shares_asked_for(experiment):
    exp, seen = experiment(), []

    def create_model(config):
        model, tokenizer = tiny.create_model(config)
        return model, tokenizer

    class Seen(tiny.Callback):
        def on_train_begin(self, args, state, control, train_dataloader=None, **kwargs):
            sampler = train_dataloader.batch_sampler.sampler
            sampler = getattr(sampler, "sampler", sampler)
            seen.append(list(sampler))

    exp.run_fit(
        config().copy(callbacks=[Seen]),
        create_model,
        mixture(List([[0.5, 0.5], [0.8, 0.2]])),
        num_chunks=3,
        block=True,
        **QUIET,
    )

    for rows, share in zip(seen, (0.5, 0.2), strict=True):
        assert len(rows) == 30
        for count in range(1, 31):
            assert abs(sum(row >= 20 for row in rows[:count]) - share * count) < 1


def test_new_weights_act_at_the_next_step_and_change_no_other_run(experiment, tmp_path):
    exp = experiment()
    asked = at(exp, 1, 8, lambda: exp.mix(1, {"support": 0.8, "code": 0.2}))
    again = at(exp, 1, 19, lambda: exp.run(1).mix([1, 3]))

    exp.run_fit(
        [config(num_train_epochs=2, logging_steps=n) for n in (1, 3)],
        tiny.create_model,
        mixture([1, 1]),
        EVALS,
        num_chunks=3,
        block=True,
        **QUIET,
    )
    assert exp.state.runs[2].config["mixture.weights"] == [0.5, 0.5]

    assert (asked[0].status, asked[0].step) == ("applied", 8)
    assert (again[0].status, again[0].step) == ("applied", 19)
    changed = [[0, [0.5, 0.5]], [16, [0.8, 0.2]], [38, [0.25, 0.75]]]
    assert weights_of(exp) == [changed, [0.5, 0.5]]
    events = [e for e in exp.events if e.kind == "op"]
    assert [(e.data["kind"], e.data["step"], e.data["by"]) for e in events] == [
        ("mix", 8, "cell"),
        ("mix", 19, "cell"),
    ]
    assert events[-1].data["weights"] == changed
    check(exp, tmp_path)


def test_a_run_that_was_weighed_anew_has_trained_on_those_rows(experiment, tmp_path):
    exp = experiment()
    at(exp, 1, 4, lambda: exp.mix(1, [0, 1]))

    exp.run_fit(config(), tiny.create_model, mixture([1, 0]), num_chunks=1, block=True, **QUIET)

    (weights,) = weights_of(exp)
    rows = mixed_rows(tasks_rows((20, 10), range(30)), in_parts(weights), 42, 0, 30)
    assert all(row < 20 for row in rows[:8]) and all(row >= 20 for row in rows[8:])
    fixed = experiment("fixed")  # the same rows one after another, by TRL's own sequential sampler
    fixed.run_fit(
        config(train_sampling_strategy="sequential"),
        tiny.create_model,
        [ROWS[row] for row in rows],
        num_chunks=1,
        block=True,
        **QUIET,
    )
    assert_same(sliced(exp.runs[0]), sliced(fixed.runs[0]))


def test_ops_on_weights_are_judged_by_how_the_run_stands(experiment, tmp_path):
    exp = experiment()
    exp.run_fit(
        config(), tiny.create_model, mixture([1, 1]), num_chunks=3, slice_steps=1, panel=False
    )
    stopped = exp.stop(1).wait(60)

    same = exp.mix(1, [3, 3]).wait(30)
    new = exp.mix(1, [4, 1]).wait(30)
    undone = exp.undo().wait(30)
    exp.mix(1, [1, 4]).wait(30)
    exp.resume(1).wait(30)
    exp.wait(60)

    assert (same.status, new.status, undone.op.kind) == ("already", "applied", "mix")
    assert undone.op.args == {"weights": [0.5, 0.5]}
    assert weights_of(exp) == [[[0, [0.5, 0.5]], [2 * stopped.step, [0.2, 0.8]]]]
    assert exp.mix(1, [1, 4]).wait(30).status == "already"
    with pytest.raises(OpError, match="run 1 is completed; only a run that goes on"):
        exp.mix(1, [1, 1]).wait(30)
    for weights, words in (
        ([1], "weights need one number for each of 2 tasks (support, code), got 1"),
        ({"suport": 1, "code": 1}, "there is no task 'suport'"),
        ([0, 0], "one weight at least"),
    ):
        with pytest.raises(ConfigError) as refused:
            exp.mix(1, weights)
        assert words in str(refused.value)
    check(exp, tmp_path)


def test_a_run_on_one_data_set_has_no_weights_to_change(experiment):
    exp = experiment()
    exp.run_fit(config(max_steps=1), tiny.create_model, ROWS, num_chunks=1, block=True, **QUIET)

    with pytest.raises(OpError, match="run 1 trains on one data set; tasks are weighed where"):
        exp.mix(1, [1, 1]).wait(30)


def test_clones_take_the_parent_s_weights_or_new_ones(experiment, tmp_path):
    exp = experiment()
    at(exp, 1, 4, lambda: exp.mix(1, [4, 1]))
    made = at(
        exp,
        1,
        9,
        lambda: [
            exp.clone(1, {"mixture.weights": {"support": 1, "code": 4}}, warm=True),
            exp.clone(1, {"learning_rate": 1e-3}, warm=True),
            exp.clone(1, {"weights": [0.3, 0.7]}),
            exp.clone(1, {"per_device_train_batch_size": 5, "weights": [1, 0]}, warm=True),
        ],
    )

    def fit():
        exp.run_fit(config(), tiny.create_model, mixture([1, 1]), num_chunks=3, **QUIET)

    fit()
    exp.wait(90)

    over = [[0, [0.5, 0.5]], [8, [0.8, 0.2]]]
    assert [handle.run_id for handle in made[0]] == [2, 3, 4, 5]
    assert weights_of(exp) == [
        over,
        [*over, [18, [0.2, 0.8]]],
        over,
        [0.3, 0.7],
        [*over, [18, [1.0, 0.0]]],
    ]
    assert all(run.status == "completed" for run in exp.runs), [r.trace for r in exp.runs]
    whole = exp.clone(1).wait(30)  # cold and unchanged: the parent again, changes of weights too
    exp.wait(90)
    assert weights_of(exp)[whole.run_id - 1] == over
    assert_same(sliced(exp.run(whole.run_id)), sliced(exp.run(1)))
    fit()  # the same cells again make no clone twice
    again = exp.clone(1, {"mixture.weights": {"support": 1, "code": 4}}, warm=True).wait(30)
    assert (again.status, again.run_id) == ("already", 2)
    with pytest.raises(ConfigError, match="the tasks of a mixture are run_fit's"):
        exp.clone(1, {"mixture.tasks": ["a", "b"]})
    with pytest.raises(ConfigError, match="weights need one number for each of 2 tasks"):
        exp.clone(1, {"mixture.weights": [1]})


def test_the_same_cells_attach_and_other_weights_are_refused(experiment):
    exp = experiment()

    def fit(weights, rows=ROWS):
        tasks = mix({"support": rows[:20], "code": rows[20:]}, weights)
        exp.run_fit(config(), tiny.create_model, tasks, num_chunks=2, slice_steps=1, **QUIET)

    fit([1, 1])
    exp.mix(1, [4, 1]).wait(60)
    fit([0.5, 0.5])

    with pytest.raises(ExperimentError, match=r"mixture.weights=\[0.5, 0.5\], not \[0.8, 0.2\]"):
        fit([4, 1])
    with pytest.raises(ExperimentError, match="was made with tasks="):
        fit([1, 1], [*ROWS, ROWS[0]])
    exp.wait(60)


def test_eval_sets_are_reported_by_task_and_by_their_mean(experiment):
    exp = experiment()

    exp.run_fit(
        config(),
        tiny.create_model,
        mixture(List([[1, 1], [4, 1]])),
        EVALS,
        num_chunks=3,
        eval_budget=1.0,
        max_new_tokens=4,
        block=True,
        panel=False,
    )

    for run in exp.runs:
        rows = [row for row in run.rows if "eval_loss" in row]
        answers = [row for row in run.rows if "eval_bleu" in row]
        assert [row["step"] for row in rows] == [row["step"] for row in answers] == [5, 10, 15]
        for row in rows:
            mean = (row["eval_support_loss"] + row["eval_code_loss"]) / 2
            assert row["eval_loss"] == mean and row["eval_support_loss"] != row["eval_code_loss"]
            assert {"eval_code_mean_token_accuracy", "eval_code_perplexity"} <= row.keys()
            assert {"eval_perplexity", "eval_mean_token_accuracy"} <= row.keys()
            assert "eval_num_tokens" not in row
        assert {"eval_support_bleu", "eval_code_rougeL"} <= answers[0].keys()
    assert exp.best().id in (1, 2) and exp.best("eval_code_loss").id in (1, 2)
    table = exp.samples()
    assert list(table["task"]) == ["support"] * 4 + ["code"] * 2
    assert list(table["prompt"]) == [r["prompt"] for task in EVALS.values() for r in task]


def test_a_task_s_loss_is_that_of_its_eval_set_alone(experiment):
    both, code = experiment("both"), experiment("code")
    args = {"num_chunks": 1, "block": True, "eval_budget": 1.0, **QUIET}

    both.run_fit(config(max_steps=4), tiny.create_model, ROWS, EVALS, **args)
    code.run_fit(config(max_steps=4), tiny.create_model, ROWS, EVALS["code"], **args)

    rows = [[r for r in exp.runs[0].rows if "eval_loss" in r][-1] for exp in (both, code)]
    assert rows[0]["eval_code_loss"] == rows[1]["eval_loss"]
    assert rows[0]["eval_code_perplexity"] == rows[1]["eval_perplexity"]


def test_trl_s_own_evaluation_by_task_equals_plain_trl_and_survives_ops(experiment, tmp_path):
    exp, asked = experiment(), []

    class StopInEvaluation(tiny.Callback):
        def on_prediction_step(self, args, state, control, **kwargs):
            if state.global_step == 10 and len(asked) < 5:  # support's four rows, code's first
                asked.append(exp.stop(1) if len(asked) == 4 else None)

    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_code_loss"}
    exp.run_fit(
        [
            config(
                eval_strategy="chunk",
                save_strategy="chunk",
                per_device_eval_batch_size=1,
                **best,
            ).copy(callbacks=[StopInEvaluation]),
            config(eval_strategy="steps", eval_steps=4),
        ],
        tiny.create_model,
        mixture([4, 1]),
        EVALS,
        num_chunks=3,
        **QUIET,
    )
    exp.run(1).wait(60)
    assert (asked[-1].wait(30).status, asked[-1].step) == ("applied", 10)
    exp.resume(1).wait(30)
    exp.wait(60)

    rows = [row for row in exp.run(1).rows if "eval_loss" in row]
    assert [row["step"] for row in rows] == [5, 10, 15]
    mean = {row["step"]: row["eval_loss"] for row in rows}
    parts = {(r["step"], n): r[n] for r in exp.run(1).rows for n in r if n.endswith("_loss")}
    for step, value in mean.items():
        assert value == (parts[step, "eval_support_loss"] + parts[step, "eval_code_loss"]) / 2
    assert "eval_code_mean_token_accuracy" in rows[0]
    for run in exp.runs:  # the callback asks for a stop in this experiment only
        assert run.status == "completed", run.trace
    assert_same(sliced(exp.run(2)), plain(exp.run(2), tmp_path / "plain2"))


def test_preferences_can_be_mixed_too(experiment, tmp_path):
    exp = experiment()
    dpo = RFModelConfig(
        "tiny",
        peft_config=lora(lora_dropout=0.1),
        training_args=RFDPOConfig(
            learning_rate=1e-2, per_device_train_batch_size=2, num_train_epochs=1, max_length=32
        ),
    )

    exp.run_fit(
        dpo,
        tiny.create_model,
        mix({"a": tiny.dpo_rows(8), "b": tiny.dpo_rows(12)[8:]}, [3, 1]),
        num_chunks=2,
        trainer_type="DPO",
        block=True,
        **QUIET,
    )

    check(exp, tmp_path)


@pytest.mark.parametrize(
    "search",
    [
        RFRandomSearch(config(max_steps=1), num_runs=3, trainer_type="MTL"),
        RFOptuna(config(max_steps=1), "MTL", num_runs=3, at_once=1, sampler="random"),
    ],
)
def test_weights_can_be_drawn_and_suggested(experiment, search):
    exp = experiment()

    exp.run_fit(
        search,
        tiny.create_model,
        mixture(List([[1, n] for n in range(1, 6)])),
        num_chunks=1,
        block=True,
        **QUIET,
    )

    assert len({tuple(one) for one in weights_of(exp)}) == 3
    assert all(list(run.facts.changes) == ["mixture.weights"] for run in exp.runs if run.parent)


CHATS = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
KTO = RFModelConfig("tiny", peft_config=lora(), training_args=RFKTOConfig())
GRPO = RFModelConfig(
    "tiny",
    peft_config=lora(),
    training_args=RFGRPOConfig(num_generations=2, per_device_train_batch_size=2),
    reward_funcs=[tiny.reward_length],
)


@pytest.mark.parametrize(
    ("group", "train", "more", "words"),
    [
        (
            RFGridSearch(config(), trainer_type="MTL"),
            ROWS,
            {},
            'trainer_type="MTL" trains on several tasks; give train_dataset=mix({"support": rows',
        ),
        (config(packing=True), mixture, {}, "a mixture orders the rows itself: use SFT, DPO or"),
        (config(remove_unused_columns=False), mixture, {}, "a mixture orders the rows itself"),
        (config(train_sampling_strategy="sequential"), mixture, {}, "a mixture orders the rows"),
        (RFGridSearch(KTO, "KTO"), mixture, {}, "a mixture orders the rows itself"),
        (RFGridSearch(GRPO, "GRPO"), mixture, {}, "a mixture orders the rows itself"),
        (config(), mixture, {"strategy": "stratified"}, "a mixture's order is given by its"),
        (
            config(),
            lambda: mix({"support": ROWS, "chats": CHATS}),
            {},
            "tasks must have one layout: 'support' is prompt completion of texts, 'chats' is",
        ),
        (config(), {"support": ROWS}, {}, "several tasks are given as mix({...})"),
        (
            config().copy(mixture={"tasks": ["a"], "weights": [1]}),
            mixture,
            {},
            "weights are given in one place: mix({...}, weights=[...])",
        ),
        (
            config(load_best_model_at_end=True, eval_strategy="epoch", save_strategy="epoch"),
            mixture,
            {"eval_dataset": EVALS},
            'got eval_loss; give metric_for_best_model="eval_support_loss" or "eval_code_loss"',
        ),
        (
            config().copy(mixture={"tasks": ["a"], "weights": [1]}),
            ROWS,
            {},
            "mixture= is set by run_fit; give train_dataset=mix({...}, weights=[...]) instead",
        ),
        (config(), mixture, {"eval_dataset": {"a": ROWS, "b": 1}}, "eval_dataset['b'] must be"),
    ],
)
def test_what_cannot_be_mixed_is_refused_in_the_cell(experiment, group, train, more, words):
    exp = experiment()

    with pytest.raises((ConfigError, DataError)) as refused:
        exp.run_fit(
            group,
            tiny.create_model,
            train() if callable(train) else train,
            num_chunks=2,
            panel=False,
            **more,
        )

    assert words in str(refused.value) and "\n" not in str(refused.value)
    assert exp.status == "empty"


def test_a_task_of_which_no_row_is_left_fails_its_run_alone(experiment):
    exp = experiment()
    long = [{"prompt": row["prompt"] * 9, "completion": row["completion"]} for row in ROWS[20:]]

    exp.run_fit(
        [config(max_length=n) for n in (40, 512)],
        tiny.create_model,
        mix({"support": ROWS[:20], "code": long}, [4, 1]),
        num_chunks=1,
        block=True,
        **QUIET,
    )

    assert [run.status for run in exp.runs] == ["failed", "completed"]
    assert "no rows of task 'code' are left to train on: all 10 were dropped" in exp.runs[0].error


# ---------------------------------------------------------------------------------------- recovery

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "transformers", "trl", "peft", "datasets", "tiny"])
CHANGE = {"support": 4, "code": 1}


def cells(root, listen=None):
    """The notebook: training, and other weights for run 1 as it logs step 8."""
    exp = Experiment("exp", root=root)
    if listen is not None:
        exp._opened.log.subscribe(lambda event: listen(exp, event))
    exp.run_fit(
        [config(num_train_epochs=2, logging_steps=n) for n in (1, 3)],
        tiny.create_model,
        mixture(List([[1, 1], [1, 3]])),
        EVALS,
        num_chunks=3,
        keep_checkpoints=4,
        **QUIET,
    )
    return exp


def _killed(root, path, kind, step):
    sys.path[:] = path
    import torch

    torch.set_num_threads(1)
    asked = []

    def listen(exp, event):
        here = event.run == 1 and (event.data.get("row") or event.data).get("step")
        if event.kind == "logged" and here == 8 and not asked:
            asked.append(exp.mix(1, CHANGE))
        if event.kind == kind and here == step and (kind != "op" or event.data["kind"] == "mix"):
            os.kill(os.getpid(), signal.SIGKILL)

    cells(root, listen).wait(120)


def kill_at(root, kind, step):
    process = _context.Process(target=_killed, args=(str(root), sys.path, kind, step))
    process.start()
    process.join(180)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("kind", "step"),
    [("checkpoint", 8), ("op", 8), ("logged", 9), ("checkpoint", 10), ("logged", 21)],
)
def test_killed_around_a_change_of_weights_the_run_ends_as_plain_trl(tmp_path, kind, step):
    kill_at(tmp_path, kind, step)

    exp = cells(tmp_path)
    if kind == "checkpoint" and step == 8:  # the op was not done yet: it is asked again
        at_8 = exp.mix(1, CHANGE).wait(60)
        assert at_8.status == "applied" and at_8.step >= 8
    else:
        assert exp.mix(1, CHANGE).wait(60).status == "already"
        assert exp.run(1).config["mixture.weights"] == [[0, [0.5, 0.5]], [16, [0.8, 0.2]]]
    exp.wait(120)

    assert exp.run(1).exact and exp.run(2).status == "completed"
    assert_same(sliced(exp.run(1)), plain(exp.run(1), tmp_path / "plain"))
    exp.end()


def test_with_the_checkpoint_of_the_change_lost_an_older_one_meets_the_same_rows(tmp_path):
    kill_at(tmp_path, "logged", 9)
    folder = tmp_path / "exp" / "runs" / "1"
    newest = checkpoints.listed(folder)[-1]
    assert newest[0] == 8
    (newest[1] / checkpoints.MANIFEST).unlink()

    exp = cells(tmp_path)
    exp.wait(120)

    assert exp.run(1).config["mixture.weights"] == [[0, [0.5, 0.5]], [16, [0.8, 0.2]]]
    recovered = [e for e in exp.events if e.kind == "run_recovered" and e.run == 1]
    assert recovered[0].data["step"] == 5
    assert_same(sliced(exp.run(1)), plain(exp.run(1), tmp_path / "plain"))
    exp.end()


def test_a_kernel_that_comes_later_knows_the_weights_of_clones(tmp_path):
    exp = cells(tmp_path)
    exp.run(1).wait(60)
    made = exp.clone(1, {"mixture.weights": [1, 9], "num_train_epochs": 3}, warm=True).wait(60)
    exp.mix(made.run_id, [9, 1]).wait(60)
    exp.end()
    before = exp.run(made.run_id).config["mixture.weights"]

    later = cells(tmp_path)
    live = later._fit.configs[made.run_id].model.mixture
    later.wait(120)

    assert live["weights"] == before == later.run(made.run_id).config["mixture.weights"]
    assert before[-1][1] == [0.9, 0.1]
    assert later.run(made.run_id).status == "completed"
    stored = json.loads((later.folder / "experiment.json").read_text())
    assert stored["tasks"] == {"support": 20, "code": 10}
    later.end()
