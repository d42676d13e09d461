"""Trainers by name and by class, their facts, and configs of any class."""

import copy
import pickle

import pytest
from trl import DPOTrainer, SFTConfig, SFTTrainer

from rapidfire_jupyter import (
    List,
    RFConfig,
    RFGridSearch,
    RFGRPOConfig,
    RFKTOConfig,
    RFModelConfig,
    RFSFTConfig,
)
from rapidfire_jupyter.attaching import specs
from rapidfire_jupyter.changes import modify
from rapidfire_jupyter.config import flatten
from rapidfire_jupyter.encoding import decode, encode
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.search import as_search
from rapidfire_jupyter.trainer_types import TRAINERS, trainer_type_of


class OwnTrainer(SFTTrainer):
    """A user's trainer."""


def orpo():
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    return ORPOConfig, ORPOTrainer


OF_TRL = [name for name, facts in TRAINERS.items() if not facts.mixed]


@pytest.mark.parametrize("name", OF_TRL)
def test_a_trainer_by_name_is_found_in_any_case_and_as_trls_own_class(name):
    import trl

    assert trainer_type_of(name.lower()) is TRAINERS[name]
    assert trainer_type_of(f"{name}Trainer") is TRAINERS[name]
    assert trainer_type_of(getattr(trl, f"{name}Trainer")) is TRAINERS[name]


def test_the_table_agrees_with_trls_classes():
    import trl
    from transformers import Trainer

    for name, facts in ((name, TRAINERS[name]) for name in OF_TRL):
        cls = getattr(trl, f"{name}Trainer")
        takes = cls.__init__.__annotations__

        assert facts.own_order == (cls._get_train_sampler is not Trainer._get_train_sampler), name
        assert facts.generates == hasattr(cls, "_generate"), name
        assert facts.rewarded == ("reward_funcs" in takes), name


def test_facts_of_other_classes_come_from_the_nearest_ancestor():
    _, orpo_trainer = orpo()
    from trl.experimental.gkd import GKDTrainer

    own, odds, gkd = map(trainer_type_of, (OwnTrainer, orpo_trainer, GKDTrainer))

    assert (own.name, own.rows, own.pairs, own.own_order) == ("Own", "SFT", False, False)
    assert (odds.name, odds.rows, odds.generates) == ("ORPO", "DPO", False)
    assert (gkd.name, gkd.rows) == ("GKD", "GKD")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("PPO", "RLOO and GRPO take its place"),
        ("orpo", "from trl.experimental.orpo import ORPOTrainer"),
        ("STF", "did you mean 'SFT'"),
        (3, "or a trainer class, got 3"),
        (dict, "no subclass of transformers.Trainer"),
    ],
)
def test_unknown_trainers_are_refused_with_what_to_use(given, says):
    with pytest.raises(ConfigError, match=says):
        trainer_type_of(given)


def test_a_config_of_any_class_takes_choices_and_is_checked_as_ours_are():
    orpo_config, orpo_trainer = orpo()
    args = RFConfig(orpo_config, beta=List([0.1, 0.2]), learning_rate=1e-4)

    runs = RFGridSearch(RFModelConfig("tiny", training_args=args), orpo_trainer).runs()

    assert [run.model.training_args.beta for run in runs] == [0.1, 0.2]
    assert [run.trainer_type for run in runs] == [orpo_trainer] * 2
    assert runs[0].trainer.name == "ORPO"
    assert repr(args).startswith("RFORPOConfig(beta=")
    sft = RFModelConfig("tiny", training_args=RFSFTConfig(learning_rate=1e-4)).build()
    assert [run["name"] for run in specs([*runs, sft])] == [
        "trainer_type=ORPOTrainer beta=0.1",
        "trainer_type=ORPOTrainer beta=0.2",
        "trainer_type=SFT",
    ]
    given = [RFSFTConfig(gradient_checkpointing_kwargs={"use_reentrant": on}) for on in (0, 1)]
    kwargs = [RFModelConfig("tiny", training_args=one).build() for one in given]
    assert {run["name"] for run in specs(kwargs)} == {"gradient_checkpointing_kwargs=..."}
    with pytest.raises(ConfigError, match="RFORPOConfig has no argument 'betta'"):
        RFConfig(orpo_config, betta=1)
    with pytest.raises(ConfigError, match="takes a config class"):
        RFConfig(beta=1)


def test_configs_of_any_class_are_copied_pickled_and_changed():
    orpo_config, _ = orpo()
    args = RFConfig(orpo_config, beta=0.1)
    run = RFModelConfig("tiny", training_args=args).build()

    assert copy.deepcopy(args) == args == pickle.loads(pickle.dumps(args))
    assert args.copy(beta=0.2) != args
    assert RFConfig(SFTConfig, packing=True) == RFSFTConfig(packing=True)
    assert modify(run, {"beta": 0.3}).model.training_args.beta == 0.3
    assert encode(flatten(run))["training_args.beta"] == 0.1
    with pytest.raises(ConfigError, match="cannot be stored; give it again"):
        decode(encode(args))


def test_a_real_config_object_is_read_back_as_what_was_given(tmp_path):
    real = SFTConfig(output_dir=str(tmp_path), use_cpu=True, learning_rate=3e-4, packing=True)

    args = RFModelConfig("tiny", training_args=real).training_args

    assert args == RFSFTConfig(learning_rate=3e-4, packing=True)


def test_the_trainer_is_inferred_from_the_arguments_beside_it():
    orpo_config, orpo_trainer = orpo()

    assert RFModelConfig("tiny", training_args=RFKTOConfig()).build().trainer_type == "KTO"
    model = RFModelConfig("tiny", training_args=RFConfig(orpo_config))
    assert model.build().trainer_type is orpo_trainer
    with pytest.raises(ConfigError, match="takes RFORPOConfig, got training_args=RFSFTConfig"):
        RFModelConfig("tiny", training_args=RFSFTConfig()).build(orpo_trainer)
    assert RFModelConfig("tiny").build(OwnTrainer).model.training_args == RFSFTConfig()


def test_searches_of_several_trainers_are_one_list():
    sft = RFModelConfig("tiny", training_args=RFSFTConfig(learning_rate=List([1e-3, 1e-4])))

    search = as_search([RFGridSearch(sft), RFGridSearch(RFModelConfig("tiny"), DPOTrainer)])

    assert [run.trainer.name for run in search.runs()] == ["SFT", "SFT", "DPO"]
    assert search.describe().startswith("3 runs: 2 runs")


def reward(prompts, completions, **kwargs):
    return [0.0] * len(prompts)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "GRPO needs a reward"),
        ({"reward_funcs": [3]}, "takes functions, sequence classifiers and their names, got 3"),
        ({"reward_funcs": [reward, reward]}, "2 reward functions are called 'reward'"),
        ({"reward_funcs": lambda prompts: []}, r"end its arguments with \*\*kwargs"),
        (
            {"reward_funcs": reward, "training_args": RFGRPOConfig(reward_weights=[1.0, 2.0])},
            "reward_weights has 2 weights for 1 reward functions",
        ),
        ({"reward_funcs": reward, "reward_timeout": -1.0}, "seconds over 0"),
    ],
)
def test_reward_functions_that_cannot_work_are_refused_in_the_cell(given, says):
    with pytest.raises(ConfigError, match=says):
        RFModelConfig("tiny", **given).build("GRPO")


def test_reward_functions_for_a_trainer_without_rewards_are_refused():
    with pytest.raises(ConfigError, match="KTO takes no reward_funcs"):
        RFModelConfig("tiny", reward_funcs=reward).build("KTO")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"peft": "lora"}, "it is called 'peft_config' now"),
        ({"fp8": True}, "use bf16=True"),
        ({"load_in_4bit": True}, "BitsAndBytesConfig"),
    ],
)
def test_everyday_names_are_refused_with_what_they_are_called(given, says):
    with pytest.raises(ConfigError, match=says):
        RFModelConfig("tiny", **given)


@pytest.mark.usefixtures("no_bitsandbytes")
def test_what_needs_a_missing_package_or_two_precisions_is_refused_in_the_cell(experiment):
    import tiny

    exp = experiment()
    for given, says in (
        ({"optim": "adamw_8bit"}, "pip install bitsandbytes"),
        ({"use_liger_kernel": True}, "needs a GPU|pip install liger-kernel"),
        ({"bf16": True, "fp16": True}, "refuses these arguments"),
        ({"fp16": True}, "fp16=True needs a GPU"),
    ):
        config = RFModelConfig("tiny", training_args=RFSFTConfig(**given))
        with pytest.raises(ConfigError, match=says):
            exp.run_fit(config, tiny.create_model, tiny.sft_rows(8))


def test_vllm_is_refused_without_a_gpu_and_for_more_than_one_run(experiment):
    import tiny

    exp = experiment()
    args = RFGRPOConfig(use_vllm=True, learning_rate=List([1e-3, 1e-4]))
    config = RFModelConfig("tiny", training_args=args, reward_funcs=[tiny.reward_length])
    for one, says in (
        (config, "is for one run of an experiment, got 2: an engine or server of vLLM holds"),
        (config.copy(training_args=RFGRPOConfig(use_vllm=True)), "needs a GPU, found none"),
    ):
        with pytest.raises(ConfigError, match=says):
            exp.run_fit(one, tiny.create_model, tiny.grpo_rows(8))


@pytest.mark.slow
def test_target_modules_that_match_nothing_are_refused_with_those_there_are(experiment):
    import tiny

    from rapidfire_jupyter import RFLoraConfig
    from rapidfire_jupyter.errors import OpError

    exp = experiment()
    args = RFSFTConfig(per_device_train_batch_size=4, max_steps=2)

    exp.run_fit(
        RFModelConfig(
            "tiny",
            peft_config=List(
                [
                    RFLoraConfig(r=2, target_modules=["q_proj", "query"]),
                    RFLoraConfig(r=2, target_modules=["q_proj"]),
                ]
            ),
            training_args=args,
        ),
        tiny.create_model,
        tiny.sft_rows(8),
        num_chunks=1,
        block=True,
    )
    refused = exp.clone(2, {"target_modules": ["v_porj"]}, warm=False)

    assert exp.run(1).status == "failed" and exp.run(2).status == "completed"
    assert "no module of the model is called 'query'" in exp.run(1).error
    assert "its linear layers are down_proj, gate_proj, k_proj, lm_head" in exp.run(1).error
    with pytest.raises(OpError, match="did you mean 'v_proj'"):
        refused.wait(30)
