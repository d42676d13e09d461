"""Weights of a mixture: as they are given, and over a run's rows."""

import math

import pytest

from rapidfire_jupyter import mixture
from rapidfire_jupyter.errors import ConfigError

TASKS = ["support", "code"]


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ([1, 1], [0.5, 0.5]),
        ([0.8, 0.2], [0.8, 0.2]),
        ((4, 1), [0.8, 0.2]),
        ({"code": 3, "support": 1}, [0.25, 0.75]),
        ([1, 0], [1.0, 0.0]),
        ([2, 1], [0.6667, 0.3333]),
        ([1e300, 1e300], [0.5, 0.5]),
    ],
)
def test_weights_become_shares_of_one(weights, shares):
    assert mixture.shares(weights, TASKS) == shares


def test_shares_of_any_weights_sum_to_one_and_stay_what_they_are():
    names = [str(n) for n in range(7)]
    for weights in ([1] * 7, [0.1, 0.2, 0.3, 0.1, 0.1, 0.1, 0.1], [math.pi**n for n in range(7)]):
        shares = mixture.shares(weights, names)

        assert sum(round(one * mixture.WHOLE) for one in shares) == mixture.WHOLE
        assert mixture.shares(shares, names) == shares


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([0.5], "one number for each of 2 tasks (support, code), got 1: [0.5]"),
        ([0.5, 0.2, 0.3], "got 3"),
        ([1, -1], "task 'code' must be a finite number >= 0, got -1"),
        ([1, math.nan], "task 'code' must be a finite number >= 0, got nan"),
        ([math.inf, 1], "task 'support' must be a finite number >= 0, got inf"),
        ([True, 1], "task 'support' must be a finite number >= 0, got True"),
        ([1, "2"], "task 'code' must be a finite number >= 0, got '2'"),
        ([0, 0], "one weight at least must be over 0, got [0, 0]"),
        ([1, 1e-6], "task 'code' is under one row in 10,000; give more, or 0"),
        ({"support": 1}, "weights lack task 'code'; give 0 for none of it"),
        ({"suport": 1, "code": 1}, "no task 'suport'; tasks: 'support', 'code'; did you mean"),
        (0.5, "weights are a number for each task, [0.5, 0.5] or by name, got 0.5"),
        ("0.5,0.5", "weights are a number for each task"),
    ],
)
def test_bad_weights_are_refused_in_one_line(weights, words):
    with pytest.raises(ConfigError) as refused:
        mixture.shares(weights, TASKS)

    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_weights_over_time_begin_with_the_first_and_end_with_the_last():
    weights = mixture.from_row([0.5, 0.5], 24, [0.8, 0.2])

    assert weights == [[0, [0.5, 0.5]], [24, [0.8, 0.2]]]
    assert mixture.now(weights) == [0.8, 0.2] and mixture.at_start(weights) == [0.5, 0.5]
    assert mixture.now([0.5, 0.5]) == mixture.at_start([0.5, 0.5]) == [0.5, 0.5]
    assert mixture.in_parts(weights) == [(0, [1, 1]), (24, [4, 1])]
    assert mixture.told(weights, TASKS) == "80 % support, 20 % code"


def test_a_change_takes_the_place_of_what_was_to_come_after_it():
    later = mixture.from_row([0.5, 0.5], 24, [0.8, 0.2])

    assert mixture.from_row(later, 10, [0.9, 0.1]) == [[0, [0.5, 0.5]], [10, [0.9, 0.1]]]
    assert mixture.from_row(later, 24, [0.5, 0.5]) == [0.5, 0.5]
    assert mixture.from_row(later, 0, [0.9, 0.1]) == [[0, [0.5, 0.5]], [0, [0.9, 0.1]]]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"weights": [1, 1]}, "a mixture is set by run_fit, got {'weights': [1, 1]}; give"),
        ({"tasks": TASKS, "weights": [1]}, "weights need one number for each of 2 tasks"),
        ({"tasks": TASKS, "weights": [[3, [1, 1]]]}, "weights over time are [[0, shares]"),
        ({"tasks": TASKS, "weights": [[0, [1, 1]], [9, [2, 1]], [8, [1, 1]]]}, "in order, got"),
        ({"tasks": TASKS, "weights": [[0, [1, 1]], [9, [0, 0]]]}, "one weight at least"),
    ],
)
def test_a_config_s_bad_mixture_is_refused(given, words):
    with pytest.raises(ConfigError) as refused:
        mixture.checked(given)

    assert words in str(refused.value)


def test_a_config_s_mixture_is_kept_as_shares():
    given = {"tasks": TASKS, "weights": [[0, [1, 1]], [9, {"support": 4, "code": 1}]]}

    assert mixture.checked(given) == {
        "tasks": TASKS,
        "weights": [[0, [0.5, 0.5]], [9, [0.8, 0.2]]],
    }
