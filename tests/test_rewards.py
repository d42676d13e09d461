"""Reward functions at work: what is wrong with them fails their run alone, and says what."""

import asyncio
import functools
import threading

import numpy as np
import pytest
import tiny
import torch

from rapidfire_jupyter import RFGRPOConfig, RFLoraConfig, RFModelConfig
from rapidfire_jupyter.errors import RapidFireError
from rapidfire_jupyter.training.rewards import checked

GIVEN = {"prompts": ["a", "b"], "completions": ["c", "d"], "completion_ids": [[1], [2]]}


def returns(value):
    def reward(prompts, completions, **kwargs):
        return value

    return reward


@pytest.mark.parametrize(
    "value", [[1, 2.5], (1.0, None), np.array([1.0, 2.0]), torch.tensor([1.0, 2.0]), [True, False]]
)
def test_numbers_of_any_kind_pass(value):
    assert len(checked(returns(value), None)(**GIVEN)) == 2


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (1.0, "must return a list of 2 numbers, got float"),
        ([1.0], "returned 1 rewards for 2 completions"),
        ([1.0, 2.0, 3.0], "returned 3 rewards for 2 completions"),
        ([1.0, float("nan")], "gave nan for completion 1 of 2"),
        (["1", 2.0], "gave '1' for completion 0 of 2"),
        ([float("inf"), 0.0], "gave inf for completion 0"),
    ],
)
def test_what_is_no_reward_is_refused(value, says):
    with pytest.raises(RapidFireError, match=says):
        checked(returns(value), None)(**GIVEN)


def test_an_exception_is_told_with_the_functions_name():
    def picky(prompts, **kwargs):
        raise KeyError("answer")

    with pytest.raises(RapidFireError, match="'picky' raised KeyError: 'answer'"):
        checked(functools.partial(picky), None)(**GIVEN)
    with pytest.raises(RapidFireError, match="'picky' raised KeyError"):
        checked(picky, 60.0)(**GIVEN)


def test_a_function_that_does_not_return_is_given_up():
    gate = threading.Event()

    def stuck(prompts, **kwargs):
        gate.wait()

    async def sleepy(prompts, **kwargs):
        await asyncio.Event().wait()

    with pytest.raises(RapidFireError, match=r"'stuck' did not return within reward_timeout=0\.01"):
        checked(stuck, 0.01)(**GIVEN)
    with pytest.raises(RapidFireError, match="'sleepy' did not return within"):
        asyncio.run(checked(sleepy, 0.01)(**GIVEN))
    gate.set()


def grpo(rewards, **model):
    return RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(r=2, target_modules=["q_proj"]),
        reward_funcs=rewards,
        training_args=RFGRPOConfig(
            per_device_train_batch_size=4,
            num_generations=2,
            max_completion_length=4,
            max_steps=3,
            logging_steps=1,
        ),
        **model,
    )


def silent(completions, **kwargs):
    return [None] * len(completions)


def stuck_at_step_two(completions, trainer_state, **kwargs):
    if trainer_state.global_step == 2:
        threading.Event().wait()
    return [0.5] * len(completions)


@pytest.mark.slow
def test_one_bad_reward_function_never_costs_another_run(experiment):
    exp = experiment()

    exp.run_fit(
        [
            grpo([tiny.reward_length, silent]),
            grpo([silent]),
            grpo([stuck_at_step_two], reward_timeout=1.0),
        ],
        tiny.create_model,
        tiny.grpo_rows(8),
        num_chunks=1,
        block=True,
    )

    fine, empty, stuck = exp.runs
    assert fine.status == "completed", fine.trace
    row = next(r for r in fine.rows if "rewards/reward_length/mean" in r)
    assert row["reward"] == row["rewards/reward_length/mean"]
    assert empty.status == stuck.status == "failed"
    assert "no reward for 4 of 4 completions: silent gave None" in empty.error
    assert "'stuck_at_step_two' did not return within reward_timeout=1.0 seconds" in stuck.error
