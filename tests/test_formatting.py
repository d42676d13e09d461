"""A formatting_func in training: it wins over layouts, is tried in the cell, and never stale."""

import threading

import pytest
import tiny
from oracle import assert_same, plain, sliced

from rapidfire_jupyter import RFDPOConfig, RFGRPOConfig, RFLoraConfig, RFModelConfig, RFSFTConfig
from rapidfire_jupyter.data.formatting import key_of
from rapidfire_jupyter.errors import ConfigError, DataError

ROWS = [{"question": f"{n} where is my order", "reply": f" it is there {n}"} for n in range(12)]


def config(function=None, args=None, **given):
    return RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(r=4, target_modules=["q_proj"]),
        training_args=args
        or RFSFTConfig(learning_rate=1e-2, per_device_train_batch_size=4, logging_steps=1),
        formatting_func=function,
        **given,
    )


def as_text(row):
    return row["question"] + row["reply"]


def as_texts(batch):
    return [q + r for q, r in zip(batch["question"], batch["reply"], strict=True)]


def as_turns(batch):
    return {
        "messages": [
            [{"role": "user", "content": q}, {"role": "assistant", "content": r}]
            for q, r in zip(batch["question"], batch["reply"], strict=True)
        ]
    }


def no_template(config):
    model, tokenizer = tiny.create_model(config)
    tokenizer.chat_template = None
    return model, tokenizer


def peeked(run):
    """The text of a run's first batch."""
    return ["".join(piece for piece, _ in row) for row in run.peek().rows]


def trained(exp, *configs, rows=ROWS, create_model=tiny.create_model):
    exp.run_fit(list(configs), create_model, rows, num_chunks=2, block=True)
    assert [run.status for run in exp.runs] == ["completed"] * len(exp.runs), exp.run(1).trace
    return exp


@pytest.mark.slow
def test_text_and_batches_of_them_train_as_plain_trl_does(experiment, tmp_path):
    exp = trained(experiment(), config(as_text), config(as_texts), config(as_turns))

    for run in exp.runs:
        assert_same(sliced(run), plain(run, tmp_path / f"plain{run.id}"), run.name)
    assert peeked(exp.run(1)) == peeked(exp.run(2))
    assert all("<|user|>" in text for text in peeked(exp.run(3)))


def test_it_wins_over_columns_that_are_a_layout_already(experiment):
    rows = [{"prompt": "never seen", "completion": " nor this", **row} for row in ROWS]

    exp = trained(experiment(), config(as_text), rows=rows)

    assert all("order it is there" in text and "never" not in text for text in peeked(exp.run(1)))


def test_for_grpo_a_text_is_the_prompt_and_the_other_columns_stay():
    from rapidfire_jupyter.data.load import load_data
    from rapidfire_jupyter.training import prepared

    grpo = config(
        lambda row: row["question"].upper(),
        RFGRPOConfig(num_generations=2, per_device_train_batch_size=2),
        reward_funcs=[tiny.reward_length],
    ).build()

    made = prepared.format_set(grpo, "train_dataset", load_data(ROWS))

    assert made[0] == {**ROWS[0], "prompt": ROWS[0]["question"].upper()}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda row: 7, "run 1: formatting_func must give a text or a dict of columns for each"),
        (lambda row: row["nothing"], "run 1: formatting_func failed on train_dataset, row 1: Key"),
        (lambda row: {"words": "x"}, "run 1: what its formatting_func gives: train: has the col"),
        (lambda batch: list(batch["reply"])[:3], "run 1: formatting_func must give"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_the_cell(experiment, function, message):
    exp, threads = experiment(), threading.active_count()

    with pytest.raises(DataError) as caught:
        exp.run_fit(config(function), tiny.create_model, ROWS)

    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    assert exp.status == "empty" and threading.active_count() == threads


def test_a_row_far_down_that_fails_is_named_by_its_run(experiment):
    exp = experiment()
    rows = [{**row, "question": None if n == 40 else row["question"]} for n, row in
            enumerate(ROWS * 5)]  # fmt: skip

    exp.run_fit(config(as_text), tiny.create_model, rows, num_chunks=2, block=True)

    assert exp.run(1).status == "failed"
    assert exp.run(1).error.startswith("formatting_func failed on train_dataset, row 41: TypeErr")


def test_a_clone_with_a_redefined_function_or_a_changed_closure_gets_new_data(experiment):
    word = ["first"]

    def make(name):
        def formatting(row):
            return f"{name} {word[0]} {row['question']}"

        return formatting

    exp = trained(experiment(), config(make("one")))
    exp.clone(1, {"formatting_func": make("two")}, warm=False).wait(30)
    exp.wait(60)
    word[0] = "second"
    exp.clone(1, {"formatting_func": make("two")}, warm=False, again=True).wait(30)
    exp.wait(60)

    starts = [" ".join(peeked(run)[0].split()[:2]) for run in exp.runs]
    assert starts == ["one first", "two first", "two second"]


def test_a_key_sees_source_closures_globals_and_functions_that_are_called(monkeypatch):
    space = {"__name__": "cells", "limit": 3, "model": object()}

    def defined(source):
        exec(source, space)
        return space["f"]

    one = defined("def helper(row): return row[:limit]\ndef f(row): return helper(row), model")
    keys = [key_of(one), key_of(one)]
    space["limit"] = 4
    keys.append(key_of(one))
    space["model"] = object()
    keys.append(key_of(one))
    exec("def helper(row): return row", space)
    keys.append(key_of(one))

    assert keys[0] == keys[1]
    assert len({repr(key) for key in keys[1:]}) == 4


def test_messages_that_a_template_refuses_are_named_by_row(experiment):
    def strict(config):
        model, tokenizer = tiny.create_model(config)
        tokenizer.chat_template = (
            "{% for m in messages %}{% if 'no' in m.content %}{{ raise_exception('never no') }}"
            "{% endif %}{{ m.content }}{% endfor %}"
        )
        return model, tokenizer

    rows = as_turns({k: [row[k] for row in ROWS] for k in ROWS[0]})["messages"]
    rows[7][1]["content"] = "no"
    exp = experiment()
    exp.run_fit(config(), strict, [{"messages": m} for m in rows], num_chunks=2, block=True)

    assert exp.run(1).error == (
        "train_dataset, row 8: the chat template refuses it: never no; mend the row, or drop it "
        "with clean_data"
    )


@pytest.mark.slow
def test_a_default_template_is_given_on_request_and_trains_as_plain_trl_does(experiment, tmp_path):
    told = config(as_turns, chat_template="chatml")

    exp = experiment()
    exp.run_fit([told, config(as_turns)], no_template, ROWS, num_chunks=2, block=True)

    assert_same(sliced(exp.run(1)), plain(exp.run(1), tmp_path / "plain"))
    assert "<|im_start|>user" in peeked(exp.run(1))[0]
    assert 'RFModelConfig(chat_template="chatml")' in exp.run(2).error


def test_a_missing_template_is_told_in_the_cell_where_the_tokenizer_can_be_had(
    experiment, tmp_path
):
    model, tokenizer = no_template({"model_kwargs": {}})
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    local = config(as_turns).copy(model_name=str(tmp_path / "model"))
    exp = experiment()

    with pytest.raises(DataError, match="run 1: train_dataset holds messages, but the tokenizer"):
        exp.run_fit(local, None, ROWS)
    with pytest.raises(ConfigError, match='chat_template must be "chatml" or the text of a Jinja'):
        exp.run_fit(local.copy(chat_template="llama"), None, ROWS)
    with pytest.raises(ConfigError, match="chat_template is no Jinja template: "):
        exp.run_fit(local.copy(chat_template="{% for %}"), None, ROWS)


def test_dpo_takes_what_a_formatting_func_makes_of_rows(experiment):
    def pair(row):
        return {"prompt": row["question"], "chosen": row["reply"], "rejected": " no"}

    args = RFDPOConfig(learning_rate=1e-2, per_device_train_batch_size=4, max_length=64)

    trained(experiment(), config(pair, args))
