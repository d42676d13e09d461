"""Splitting: the same rows for the same seed, each in one part, with the shares asked for."""

from collections import Counter

import pytest
from datasets import Dataset, IterableDataset
from hypothesis import given, settings
from hypothesis import strategies as st

from rapidfire_jupyter.data.split import split_data
from rapidfire_jupyter.errors import DataError

ROWS = [{"prompt": f"p{n}", "completion": " c", "task": "ab"[n % 4 == 0]} for n in range(100)]


def test_every_row_is_in_one_part_and_in_the_order_of_the_data():
    train, evaluation = split_data(ROWS)

    numbers = [int(row["prompt"][1:]) for part in (train, evaluation) for row in part]
    assert (len(train), len(evaluation)) == (85, 15)
    assert sorted(numbers) == list(range(100))
    assert numbers[:85] == sorted(numbers[:85])
    assert numbers[85:] == sorted(numbers[85:])


def test_the_seed_decides_which_rows():
    first, again, other = (split_data(ROWS, seed=seed)[1]["prompt"][:] for seed in (1, 1, 2))

    assert first == again
    assert first != other


def test_strata_have_the_same_share():
    train, evaluation = split_data(ROWS, 0.2, stratify="task")

    assert Counter(evaluation["task"]) == {"a": 15, "b": 5}
    assert Counter(train["task"]) == {"a": 60, "b": 20}


def test_a_value_of_one_row_and_null_stay_in_training():
    rows = [{"text": f"t{n}", "task": "many"} for n in range(10)]
    rows += [{"text": "x", "task": "once"}, {"text": "y", "task": None}]

    for seed in range(5):
        train, _ = split_data(rows, 0.5, seed, stratify="task")
        assert {"once", None} <= set(train["task"])


def test_equal_rows_go_to_the_same_part():
    rows = [{"prompt": f"p{n // 3}", "completion": " c", "id": n} for n in range(60)]

    train, evaluation = split_data(rows, 0.25)

    assert not set(train["prompt"]) & set(evaluation["prompt"])
    assert len(evaluation) == 15


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.sampled_from("abc")), min_size=2, max_size=60),
    st.floats(0.01, 0.99),
    st.integers(0, 5),
)
def test_whatever_the_data_no_row_is_lost_or_evaluated_and_trained_on(rows, fraction, seed):
    data = Dataset.from_list([{"text": str(n), "task": task} for n, task in rows])
    try:
        train, evaluation = split_data(data, fraction, seed, stratify="task")
    except DataError as error:
        assert "are too few to draw" in str(error)
        return

    together = Counter(train["text"]) + Counter(evaluation["text"])
    assert together == Counter(data["text"])
    assert not set(train["text"]) & set(evaluation["text"])
    assert len(evaluation) <= max(1, round(len(data) * fraction))


def test_data_of_no_known_layout_are_split_too():
    train, evaluation = split_data([{"x": n} for n in range(20)], 0.1)

    assert (len(train), len(evaluation)) == (18, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"eval_fraction": 0}, "eval_fraction must be over 0 and under 1, got 0"),
        ({"eval_fraction": 1.5}, "eval_fraction must be over 0 and under 1, got 1.5"),
        ({"eval_fraction": "0.1"}, "eval_fraction must be a number, got '0.1'"),
        ({"seed": -1}, "seed must be a whole number >= 0, got -1"),
        ({"stratify": "kind"}, "stratify must be a column, got 'kind'; there are prompt, comp"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(DataError, match=message):
        split_data(ROWS, **arguments)


def test_data_that_cannot_be_split_are_refused():
    with pytest.raises(DataError, match="3 rows, 1 of them different, are too few to draw"):
        split_data([{"text": "same"}] * 3)
    with pytest.raises(DataError, match="1 rows, 1 of them different"):
        split_data([{"text": "alone"}])
    with pytest.raises(DataError, match="'tags' holds list<"):
        split_data([{"text": str(n), "tags": ["x"]} for n in range(9)], stratify="tags")
    with pytest.raises(DataError, match="needs all rows at hand, got a stream"):
        split_data(IterableDataset.from_generator(lambda: iter(ROWS)))
