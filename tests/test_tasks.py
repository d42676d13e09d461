"""`mix` and eval sets by name: what is taken, and what is refused in one line."""

import pandas as pd
import pytest
import tiny
from datasets import Dataset

from rapidfire_jupyter import List, Range, mix
from rapidfire_jupyter.data import tasks
from rapidfire_jupyter.errors import ConfigError, DataError, RapidFireError

A, B = tiny.sft_rows(6), tiny.sft_rows(10)[6:]
CHATS = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]


def test_tasks_of_several_kinds_are_one_data_set_in_their_order():
    made = mix({"a": A, "b": pd.DataFrame(B), "c": Dataset.from_list(A)}, [1, 2, 1])

    assert made.sizes == (6, 4, 6) and list(made.tasks) == ["a", "b", "c"]
    assert list(made.rows) == [*A, *B, *A]
    assert made.weights == [0.25, 0.5, 0.25]
    assert repr(made) == "mix({a: 6 rows, b: 4 rows, c: 6 rows}, weights=[0.25, 0.5, 0.25])"


def test_weights_are_those_of_the_rows_by_default_and_may_be_compared():
    assert mix({"a": A, "b": B}).weights == [0.6, 0.4]
    assert mix({"a": A, "b": B}, List([[1, 1], {"b": 1, "a": 4}])).weights == List(
        [[0.5, 0.5], [0.8, 0.2]]
    )


@pytest.mark.parametrize(
    ("given", "weights", "words"),
    [
        ([A, B], None, "mix takes data sets by name, got [["),
        ({}, None, "mix takes data sets by name, got {}"),
        ({"a b": A}, None, "a task's name is a letter and up to 39"),
        ({1: A}, None, "a task's name is a letter"),
        ({"a": A, "b": []}, None, "task 'b' must be a datasets.Dataset, a list of dicts or a"),
        ({"a": A, "b": Dataset.from_list(B).select([])}, None, "task 'b' has no rows"),
        ({"a": A, "b": Dataset.from_list(B).to_iterable_dataset()}, None, "'b' is a stream"),
        ({"a": A, "b": [{"prompt": 1, "completion": 2}]}, None, "tasks 'a', 'b' do not fit"),
        ({"a": A, "b": B}, [1], "weights need one number for each of 2 tasks (a, b), got 1"),
        ({"a": A, "b": B}, List([[1, 1], [0, 0]]), "one weight at least must be over 0"),
        ({"a": A, "b": B}, {"a": 1, "bb": 1}, "there is no task 'bb'; tasks: 'a', 'b'"),
        ({"a": A, "b": B}, [Range(0.1, 0.9), 1], "weights are compared as a whole: List(["),
    ],
)
def test_what_cannot_be_mixed_is_refused_in_one_line(given, weights, words):
    with pytest.raises(RapidFireError) as refused:
        mix(given, weights)

    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_tasks_of_different_layouts_are_refused_by_name():
    with pytest.raises(DataError) as refused:
        tasks.check_layouts({"support": A, "chats": CHATS} | {}, "SFT")

    assert "'support' is prompt completion of texts, 'chats' is" in str(refused.value)


def test_eval_sets_by_name_are_those_of_a_dict_or_of_a_mixture():
    assert list(tasks.eval_sets({"a": A, "b": B})["b"]) == B
    assert list(tasks.eval_sets(mix({"a": A, "b": B}))) == ["a", "b"]
    assert list(tasks.eval_sets(A)) == A
    with pytest.raises(DataError, match=r"eval_dataset\['b'\] must be a datasets.Dataset"):
        tasks.eval_sets({"a": A, "b": 3})
    with pytest.raises(ConfigError, match="a task's name"):
        tasks.eval_sets({"a/b": A})


def test_rows_that_are_looked_at_are_shared_by_the_sets():
    two, one = {"a": A, "b": B}, {"": A}

    assert tasks.share_of(64, two) == 32 and tasks.share_of(64, one) == 64
    assert tasks.share_of(1, two) == 1 and tasks.share_of(0, two) == 0
