"""Evaluations at chunk ends: what is logged and kept, training as without them, and ops in them."""

import json
import threading

import pytest
import tiny
from oracle import TIMING, assert_same, sliced

from rapidfire_jupyter import (
    Experiment,
    List,
    RFDPOConfig,
    RFGridSearch,
    RFLoraConfig,
    RFModelConfig,
    RFSFTConfig,
    engine,
)
from rapidfire_jupyter.errors import ConfigError, OpError
from rapidfire_jupyter.executors.local import LocalExecutor
from rapidfire_jupyter.training.scores import corpus_scores, row_scores

EVAL = tiny.sft_rows(40)[30:]


def config(**given):
    args = {"learning_rate": 1e-2, "per_device_train_batch_size": 4, "num_train_epochs": 1, **given}
    return RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj"]),
        model_kwargs={"dropout": 0.1},
        training_args=RFSFTConfig(logging_steps=1, **args),
    )


def from_source(exp, run, source):
    """A run's rows of one source, as the log has them."""
    return [
        e.data["row"]
        for e in exp.events
        if e.kind == "logged" and e.run == run and e.data["source"] == source
    ]


def kept(exp, run, step):
    file = exp.run(run).folder / "samples" / f"step-{step}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_chunk_ends_have_perplexity_accuracy_and_metrics_of_the_answers_that_are_kept(experiment):
    exp = experiment()

    exp.run_fit(
        config(),
        tiny.create_model,
        tiny.sft_rows(16),
        EVAL,
        num_chunks=2,
        generate_rows=5,
        max_new_tokens=8,
        block=True,
    )

    assert exp.run(1).status == "completed", exp.run(1).trace
    for row in from_source(exp, 1, "chunk")[-2:]:
        assert row["eval_perplexity"] == pytest.approx(2.718281828459045 ** row["eval_loss"])
        assert 0 <= row["eval_mean_token_accuracy"] <= 1
    rows = from_source(exp, 1, "generation")
    assert [row["step"] for row in rows[-2:]] == [2, 4]
    samples = kept(exp, 1, 4)
    answers, right = [s["prediction"] for s in samples], [s["references"] for s in samples]
    assert [s["row"] for s in samples] == [0, 2, 4, 6, 8]
    assert [s["prompt"] for s in samples] == [EVAL[n]["prompt"] for n in (0, 2, 4, 6, 8)]
    for name, value in corpus_scores(answers, right).items():
        assert rows[-1][f"eval_{name}"] == value
    assert [s["scores"]["chrf"] for s in samples] == [
        round(row["chrf"], 6) for row in row_scores(answers, right)
    ]


def test_samples_are_a_table_of_prompts_by_runs_in_this_kernel_and_a_later_one(experiment):
    exp = experiment()
    exp.run_fit(
        config(learning_rate=List([1e-2, 1e-3])),
        tiny.create_model,
        tiny.sft_rows(16),
        EVAL,
        num_chunks=2,
        generate_rows=3,
        max_new_tokens=6,
    )
    with pytest.raises(OpError, match="no answers yet"):
        exp.samples()
    exp.wait()

    newest, first = exp.samples(), exp.samples(1, score="chrf")

    assert list(newest.columns) == [
        *("prompt", "reference", "run 1", "run 1 rougeL", "run 2", "run 2 rougeL")
    ]
    assert newest.index.tolist() == [0, 3, 6]
    assert newest["run 2"].tolist() == [s["prediction"] for s in kept(exp, 2, 4)]
    assert first["run 1"].tolist() == [s["prediction"] for s in kept(exp, 1, 2)]
    assert first["run 1 chrf"].tolist() == [s["scores"]["chrf"] for s in kept(exp, 1, 2)]
    with pytest.raises(OpError, match=r"no answers of chunk 7; there are of (0, )?1, 2"):
        exp.samples(7)
    exp.end()
    assert Experiment(exp.name, root=exp.folder.parent).samples().equals(newest)


def test_answers_are_those_of_the_final_model_generating_by_hand(experiment):
    import torch

    exp = experiment()
    exp.run_fit(
        config(), tiny.create_model, tiny.sft_rows(16), EVAL, num_chunks=2, max_new_tokens=8
    )
    exp.wait()
    model, tokenizer = exp.run(1).load_model()
    model.eval()

    for sample in kept(exp, 1, 4):
        ids = torch.tensor([tokenizer(sample["prompt"])["input_ids"]])
        made = model.generate(input_ids=ids, max_new_tokens=8, do_sample=False)
        text = tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True).strip()
        assert text == sample["prediction"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "full", "dpo", "own evaluation"])
def test_training_is_bit_for_bit_the_same_with_answers_and_without(experiment, kind):
    rows, held_out = tiny.sft_rows(16), EVAL
    one = config(num_train_epochs=2)
    if kind == "full":
        one = one.copy(peft_config=None)
    if kind == "own evaluation":
        one = config(eval_strategy="steps", eval_steps=3)
    if kind == "dpo":
        rows, held_out = tiny.dpo_rows(16), tiny.dpo_rows(22)[16:]
        args = RFDPOConfig(learning_rate=1e-2, per_device_train_batch_size=4, logging_steps=1)
        one = one.copy(training_args=args)
    made = []
    for generate_rows in (0, 6):
        exp = experiment(f"{generate_rows}")
        exp.run_fit(
            one,
            tiny.create_model,
            rows,
            held_out,
            num_chunks=2,
            generate_rows=generate_rows,
            max_new_tokens=6,
            block=True,
        )
        assert exp.run(1).status == "completed", exp.run(1).trace
        assert exp.run(1).exact
        made.append(exp)

    without, with_answers = made
    assert_same(sliced(without.run(1)), sliced(with_answers.run(1)), kind)
    assert not from_source(without, 1, "generation") and from_source(with_answers, 1, "generation")
    told = [timeless(from_source(exp, 1, "chunk")) for exp in made]
    assert told[0] == told[1]


def timeless(rows):
    return [{k: v for k, v in row.items() if not any(t in k for t in TIMING)} for row in rows]


def test_a_stop_while_a_run_answers_acts_at_the_next_token_and_it_answers_again_at_resume(
    experiment,
):
    exp, plain = experiment(), experiment("plain")
    handles = []

    def stop(predictions, references):
        return {}

    asked = RFGridSearch(config().copy(compute_metrics=stop), trainer_type="SFT")
    given = {"num_chunks": 2, "generate_rows": 4, "max_new_tokens": 40}
    plain.run_fit(asked, tiny.create_model, tiny.sft_rows(16), EVAL, block=True, **given)

    def listen(event):  # its second slice begins with the answers that it owes
        if event.kind == "slice_started" and event.data["step"] == 2 and not handles:
            handles.append(exp.stop(1))

    exp._opened.log.subscribe(listen)
    exp.run_fit(asked, tiny.create_model, tiny.sft_rows(16), EVAL, **given)
    exp.run(1).wait()

    assert handles[0].wait(30).step == 2 and exp.run(1).status == "stopped"
    assert 2 not in [row["step"] for row in from_source(exp, 1, "generation")]
    exp.resume(1).wait(30)
    exp.wait()
    assert_same(sliced(exp.run(1)), sliced(plain.run(1)), "stopped while it answered")
    assert kept(exp, 1, 2) == kept(plain, 1, 2) and kept(exp, 1, 4) == kept(plain, 1, 4)
    steps = [row["step"] for row in exp.run(1).rows if "eval_bleu" in row]
    assert steps == [row["step"] for row in plain.run(1).rows if "eval_bleu" in row]


def test_no_run_answers_any_more_when_python_ends(experiment, monkeypatch):
    exp, at_work, given, ending = experiment(), engine.engine(), [], []
    before = LocalExecutor.command

    def command(executor, run, told, *more):
        if at_work._exiting:
            given.append(type(told).__name__)
        return before(executor, run, told, *more)

    def listen(event):  # both runs are about to answer together
        if event.kind == "slice_started" and event.data["step"] == 2 and not ending:
            ending.append(threading.Thread(target=at_work.shut_down, args=(60,)))
            ending[0].start()
            while at_work._inbox.empty():
                pass

    monkeypatch.setattr(LocalExecutor, "command", command)
    exp._opened.log.subscribe(listen)
    exp.run_fit(
        config(learning_rate=List([1e-2, 1e-3])),
        tiny.create_model,
        tiny.sft_rows(16),
        EVAL,
        num_chunks=2,
        generate_rows=8,
    )
    at_work._thread.join(120)

    assert ending and set(given) == {"AbortEvaluation"}  # it is saved already
    exp._fit.executor.end()


def test_a_users_metric_of_texts_gets_all_answers_and_its_failure_costs_only_its_metrics(
    experiment,
):
    exp, seen = experiment(), []

    def judge(predictions, references):
        seen.append((predictions, references))
        if len(seen) > 2:
            raise ValueError("no more")
        return {"words": sum(len(p.split()) for p in predictions), "name": "text"}

    exp.run_fit(
        config().copy(compute_metrics=judge),
        tiny.create_model,
        tiny.sft_rows(16),
        EVAL,
        num_chunks=4,
        generate_rows=3,
        max_new_tokens=4,
        block=True,
    )

    assert exp.run(1).status == "completed", exp.run(1).trace
    assert [r.strip() for r in seen[0][1]] == [EVAL[n]["completion"].strip() for n in (0, 3, 6)]
    rows = from_source(exp, 1, "generation")
    assert "eval_words" in rows[0] and "eval_words" not in rows[-1] and "eval_bleu" in rows[-1]
    alerts = "\n".join(e.data["text"] for e in exp.events if e.kind == "alert")
    assert "compute_metrics raised ValueError('no more')" in alerts and "'name'" in alerts


def test_a_metric_of_texts_without_texts_is_refused(experiment):
    one = config().copy(compute_metrics=lambda predictions, references: {})

    with pytest.raises(ConfigError, match="give an eval_dataset, and generate_rows over 0"):
        experiment().run_fit(one, tiny.create_model, tiny.sft_rows(8))


def test_text_rows_have_no_answers_and_the_runs_go_on(experiment):
    exp = experiment()
    rows = [{"text": row["prompt"] + row["completion"]} for row in tiny.sft_rows(16)]

    exp.run_fit(config(), tiny.create_model, rows[:12], rows[12:], num_chunks=2, block=True)

    assert exp.run(1).status == "completed", exp.run(1).trace
    assert from_source(exp, 1, "chunk") and not from_source(exp, 1, "generation")


def test_seconds_of_evaluations_are_told(experiment):
    exp = experiment()

    exp.run_fit(
        config(learning_rate=List([1e-2, 1e-3])),
        tiny.create_model,
        tiny.sft_rows(16),
        EVAL,
        num_chunks=2,
        max_new_tokens=4,
        block=True,
    )

    ended = [e.data for e in exp.events if e.kind == "slice_ended"]
    assert all(0 < data["eval_seconds"] < data["seconds"] for data in ended)
    assert all(
        e.data["seconds"] >= 0
        for e in exp.events
        if e.kind == "logged" and e.data["source"] != "trainer"
    )


def test_what_costs_too_much_is_thinned_at_the_same_chunks_for_all_runs(experiment, monkeypatch):
    monkeypatch.setattr("rapidfire_jupyter.thinning.FREE_SECONDS", 0.0)
    exp = experiment()

    exp.run_fit(
        config(learning_rate=List([1e-2, 1e-3, 1e-4])),
        tiny.create_model,
        tiny.sft_rows(16),
        EVAL,
        num_chunks=4,
        max_new_tokens=24,
        eval_budget=0.001,
        block=True,
    )

    told = [e.data["text"] for e in exp.events if e.kind == "eval_thinned" and e.data["text"]]
    losses = [[row["step"] for row in from_source(exp, run, "chunk")] for run in (1, 2, 3)]
    answers = [[row["step"] for row in from_source(exp, run, "generation")] for run in (1, 2, 3)]
    assert len(told) == 1 and "answers at the last chunk end only" in told[0]
    assert losses[0] == losses[1] == losses[2] and losses[0][-2:] == [1, 4]
    assert answers[0] == answers[1] == answers[2] and answers[0][-1:] == [4]


def test_runs_answer_a_person_while_they_train_and_when_they_have_finished(experiment):
    exp, plain = experiment(), experiment("plain")
    given = {"num_chunks": 2, "generate_rows": 0}
    grid = config(learning_rate=List([1e-2, 1e-3]), num_train_epochs=4)
    plain.run_fit(grid, tiny.create_model, tiny.sft_rows(16), block=True, **given)
    exp.run_fit(grid, tiny.create_model, tiny.sft_rows(16), **given)

    during = exp.sample([1, 2], ["how do i cancel", tiny.sft_rows(1)[0]["prompt"]], 5)
    exp.wait()
    after = exp.sample(2, "how do i cancel", max_new_tokens=6)

    assert list(during.columns) == ["prompt", "run 1", "run 2"] and len(during) == 2
    for run in (1, 2):
        assert_same(sliced(exp.run(run)), sliced(plain.run(run)), "asked while it trained")
        assert exp.run(run).exact
    model, tokenizer = exp.run(2).load_model()
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "how do i cancel"}], add_generation_prompt=True, tokenize=False
    )
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    made = model.eval().generate(input_ids=ids, max_new_tokens=6, do_sample=False)
    answer = tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True).strip()
    assert after["run 2"].tolist() == [answer]


def test_training_goes_on_however_much_is_asked(experiment):
    exp, told = experiment(), []

    def ask():
        while len(told) < 500 and exp.run(1).status != "completed":
            told.append(exp.sample(1, "how do i cancel", max_new_tokens=1))

    exp.run_fit(config(), tiny.create_model, tiny.sft_rows(16), num_chunks=2)
    people = [threading.Thread(target=ask) for _ in range(3)]
    for one in people:
        one.start()
    exp.wait(120)
    for one in people:
        one.join(120)

    assert 3 <= len(told) < 500 and exp.run(1).status == "completed"


def test_what_cannot_be_asked_is_refused(experiment):
    exp = experiment()
    exp.run_fit(config(), tiny.create_model, tiny.sft_rows(8), num_chunks=1, block=True)

    user = {"role": "user", "content": "how"}
    for runs, prompts, text in (
        (7, "a", "there is no run 7; runs: 1"),
        ("1", "a", "there is no run '1'; runs: 1"),
        (None, "a", "there is no run None; runs: 1"),
        ([], "a", "no run is asked; give the number"),
        (1, [], "1 to 256 prompts are answered at a time, got 0"),
        (1, ["a"] * 257, "got 257"),
        (1, "", "a prompt is a text or a list of messages, got ''; write"),
        (1, None, "a prompt is a text or a list of messages, got None; write"),
        (1, [3], "a prompt is a text or a list of messages, got 3; write"),
        (1, [[]], "a prompt is a text or a list of messages, got \\[\\]; write"),
        (1, b"a", "a prompt is a text or a list of messages, got b'a'; write"),
        (1, user, "a prompt is a text or a list of messages, got {'role'"),
        (1, [user, "a"], "a message is a dict, got 'a'; write"),
        (1, [{"content": "how"}], "a message has a role, got {'content': 'how'}; write"),
        (1, [{"role": "user"}], "the content of a message is a text, .* got {'role': 'user'}"),
        (1, [[{**user, "content": 3}]], "the content of a message is a text, .*'content': 3}"),
        (1, "a\ud800", r"half of a surrogate pair in 'a\\ud800'; write the whole"),
        (1, [{**user, "content": "\ud800"}], "half of a surrogate pair in"),
    ):
        with pytest.raises(OpError, match=text) as refused:
            exp.sample(runs, prompts)
        assert "\n" not in str(refused.value)
    exp.end()
    with pytest.raises(OpError, match="not training here"):
        exp.sample(1, "a")


def test_magics_show_samples_and_let_runs_answer(experiment):
    from IPython.core.error import UsageError

    from rapidfire_jupyter.magics import run_magic

    exp = experiment()
    given = {"num_chunks": 1, "generate_rows": 2, "max_new_tokens": 3}
    exp.run_fit(config(), tiny.create_model, tiny.sft_rows(8), EVAL, block=True, **given)
    names = {"exp": exp}

    assert run_magic("samples --exp exp", None, names).equals(exp.samples())
    assert run_magic("samples 1 --exp exp", None, names).equals(exp.samples(1))
    told = run_magic('sample 1 "how do i cancel" --exp exp', None, names)
    assert told["prompt"].tolist() == ["how do i cancel"] and "run 1" in told
    with pytest.raises(UsageError, match="CHUNK is a whole number"):
        run_magic("samples x --exp exp", None, names)
