"""Chunks are alike: measured against chance, and made so by stratifying."""

import math
from itertools import pairwise

import numpy as np
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st
from oracle import assert_same, plain, sliced

from rapidfire_jupyter import RFLoraConfig, RFModelConfig, RFSFTConfig
from rapidfire_jupyter.data import balance
from rapidfire_jupyter.data.load import load_data
from rapidfire_jupyter.data.plan import make_plan, stratified_order
from rapidfire_jupyter.errors import ConfigError, DataError, OpError

TASKS = ("returns", "delivery", "billing", "praise")


def sorted_rows(count=800):
    """Rows sorted by task and length, with words of their own in each task: the worst order."""
    rows = []
    for n in range(count):
        task = TASKS[min(n * len(TASKS) // count, 3)]
        words = " ".join(f"{task}{k % 9}" for k in range(2 + n % 200 // 5))
        rows.append({"prompt": f"{words} {n}", "completion": f" {task}", "task": task})
    return rows


def test_rows_as_they_are_sorted_are_uneven_and_both_strategies_even_them_out():
    data = load_data(sorted_rows())
    plan = make_plan(len(data), 42, 8, None)

    given_order = balance.measure_order(data, range(len(data)), plan.starts, "none", "task")
    shuffled = balance.measure(data, plan, "task")
    _, stratified = balance.balanced(data, plan, "stratified", "task")

    assert given_order.uneven == (1, 2, 3, 4, 5, 6, 7, 8)
    assert min(chunk.word_js / chunk.word_chance for chunk in given_order.chunks) > 10
    assert shuffled.uneven == () and stratified.uneven == ()
    assert mean(stratified, "length_js") < mean(shuffled, "length_chance") / 1.5
    assert mean(stratified, "word_js") < 0.9 * mean(shuffled, "word_chance")
    for chunk in stratified.chunks:
        assert chunk.groups == pytest.approx(dict.fromkeys(TASKS, 0.25), abs=0.05)


def mean(found, name):
    return sum(getattr(chunk, name) for chunk in found.chunks) / len(found.chunks)


def test_divergences_are_those_of_their_definition():
    data = load_data([{"text": t} for t in ("a a b", "a c c", "b b b", "a b c")])

    found = balance.measure_order(data, range(4), [0, 2], "none")

    c = np.array([3, 1, 2]) / 6  # a, b, c in the first two rows
    w = np.array([4, 5, 3]) / 12
    m = (c + w) / 2
    js = sum(0.5 * (p * math.log2(p / q)) for a in (c, w) for p, q in zip(a, m, strict=True))
    kl = sum(p * math.log2(p / q) for p, q in zip(c, w, strict=True))
    assert found.chunks[0].word_js == pytest.approx(js)
    assert found.chunks[0].word_kl == pytest.approx(kl)
    assert found.chunks[0].length_js == 0
    assert [chunk.words for chunk in found.chunks] == [6, 6]


def test_tokens_are_counted_where_a_tokenizer_is_given_or_the_data_are_token_ids():
    rows = [{"prompt": f"how {n}", "completion": " order" * (n % 3)} for n in range(40)]
    plan = make_plan(40, 42, 2, None)
    tokenizer = tiny.tokenizer()
    ids = [tokenizer(f"{r['prompt']} {r['completion']}", add_special_tokens=False)["input_ids"]
           for r in rows]  # fmt: skip

    words = balance.measure(load_data(rows), plan)
    tokens = balance.measure(load_data(rows), plan, tokenizer=tokenizer)
    given = balance.measure(load_data([{"input_ids": row} for row in ids]), plan)

    assert (words.unit, tokens.unit, given.unit) == ("words", "tokens", "tokens")
    assert sum(chunk.words for chunk in tokens.chunks) == sum(map(len, ids))
    assert tokens == given != words
    assert "tokens 0.0" in repr(tokens) and "words 0.0" in repr(words)
    assert tokens.figure().data[0].name == "tokens"
    assert balance.Balance.of({k: v for k, v in words.to_dict().items() if k != "unit"}) == words


def test_a_shuffle_is_hardly_ever_called_uneven_whatever_its_seed():
    data = load_data(sorted_rows(400))

    uneven = [
        seed for seed in range(25) if balance.measure(data, make_plan(400, seed, 8, None)).uneven
    ]

    assert len(uneven) <= 1


@given(
    strata=st.lists(st.integers(0, 4), min_size=1, max_size=150),
    seed=st.integers(0, 2**31),
    epoch=st.integers(0, 3),
    chunks=st.integers(1, 9),
)
def test_any_stretch_of_a_stratified_order_has_each_stratums_share(strata, seed, epoch, chunks):
    order = stratified_order(strata, seed, epoch)

    assert sorted(order) == list(range(len(strata)))
    assert order == stratified_order(strata, seed, epoch)
    starts = make_plan(len(strata), 0, chunks, None).starts
    for stratum in set(strata):
        share = strata.count(stratum) / len(strata)
        for start, end in pairwise((*starts, len(strata))):
            mine = sum(strata[row] == stratum for row in order[start:end])
            assert abs(mine - share * (end - start)) <= 2 + 2 * len(set(strata))


def test_epochs_and_seeds_give_other_stratified_orders():
    strata = [n % 3 for n in range(60)]

    orders = [stratified_order(strata, *at) for at in ((1, 0), (1, 1), (3, 0))]

    assert len({tuple(order) for order in orders}) == 3


def test_auto_stratifies_only_where_a_shuffled_chunk_is_uneven(monkeypatch):
    data = load_data(sorted_rows(200))
    plan = make_plan(200, 42, 4, None)

    kept, _ = balance.balanced(data, plan, "auto")
    monkeypatch.setattr(balance, "DEVIATIONS", -5)  # now anything is more than chance
    made, found = balance.balanced(data, plan, "auto")

    assert kept == plan
    assert made.strata and found.strategy == "stratified" and len(set(made.strata)) > 4


def test_many_or_long_rows_are_measured_by_a_sample_and_it_says_so(monkeypatch):
    monkeypatch.setattr(balance, "SAMPLE_ROWS", 300)
    data = load_data(sorted_rows(800))

    found = balance.measure(data, make_plan(800, 42, 4, None))

    assert (found.rows, found.measured) == (800, 300)
    whole = sum(len(f"{r['prompt']} {r['completion']}".split()) for r in data)
    assert sum(chunk.words for chunk in found.chunks) == pytest.approx(whole, rel=0.1)


def test_a_balance_survives_storage_and_is_drawn():
    data = load_data(sorted_rows(100))
    found = balance.measure(data, make_plan(100, 42, 4, None), "task")

    assert balance.Balance.of(found.to_dict()) == found
    assert [len(trace.x) for trace in found.figure().data] == [4] * 6
    assert repr(found).startswith("100 rows in chunks of strategy 'shuffle'")


def config(**given):
    args = {"learning_rate": 1e-2, "per_device_train_batch_size": 4, "logging_steps": 1, **given}
    return RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(r=4, target_modules=["q_proj"]),
        training_args=RFSFTConfig(**args),
    )


@pytest.mark.slow
def test_a_stratified_run_equals_plain_trl_in_that_order_also_where_rows_are_dropped(
    experiment, tmp_path
):
    exp = experiment()

    exp.run_fit(
        [config(num_train_epochs=2), config(max_length=12)],
        tiny.create_model,
        [{**row, "kind": n % 3} for n, row in enumerate(tiny.sft_rows(30))],
        num_chunks=3,
        strategy="stratified",
        stratify="kind",
        block=True,
    )

    dropped = [e.data["dropped"] for e in exp.events if e.kind == "run_prepared"]
    assert dropped[0] == 0 and dropped[1] > 0
    for run in exp.runs:
        assert run.status == "completed", run.trace
        assert_same(sliced(run), plain(run, tmp_path / f"plain{run.id}"), run.name)
    assert exp.chunks().strategy == "stratified"
    by_tokens = exp.chunks(tiny.tokenizer())
    assert (by_tokens.strategy, by_tokens.unit) == ("stratified", "tokens")
    assert by_tokens.chunks[0].groups == exp.chunks().chunks[0].groups
    assert exp.chunks().chunks[0].groups == pytest.approx(
        {"0": 1 / 3, "1": 1 / 3, "2": 1 / 3}, abs=0.11
    )


def test_wrong_strategies_are_refused_in_the_cell(experiment):
    exp = experiment()
    rows = tiny.sft_rows(12)

    with pytest.raises(OpError, match="chunks are measured when run_fit begins"):
        exp.chunks()
    for asked, error, message in (
        ({"strategy": "even"}, ConfigError, "one of shuffle, stratified, auto, got 'even'"),
        ({"stratify": "kind"}, ConfigError, "needs strategy="),
        ({"strategy": "auto", "stratify": "x"}, DataError, "stratify must be a column, got 'x'"),
    ):
        with pytest.raises(error, match=message):
            exp.run_fit(config(), tiny.create_model, rows, **asked)
