"""Recorded configs: what they keep, what they refuse and in which words, and how they change."""

import copy
import functools
import json
import math
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rapidfire_jupyter.arguments import BOUNDS, GONE, OWNED, RENAMED, WIDER
from rapidfire_jupyter.changes import modify
from rapidfire_jupyter.choices import List, Range
from rapidfire_jupyter.config import MODEL_ARGUMENTS, RFModelConfig, RunConfig, differences, flatten
from rapidfire_jupyter.encoding import decode, encode, same_key
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.recorded import (
    WRAPPERS,
    Recorded,
    RFDPOConfig,
    RFGRPOConfig,
    RFLoraConfig,
    RFSFTConfig,
)


def brevity(completions: list[str], **kwargs: object) -> list[float]:
    return [-float(len(text)) for text in completions]


def politeness(completions: list[str], **kwargs: object) -> list[float]:
    return [float("please" in text) for text in completions]


def as_prompt(row: dict[str, str]) -> dict[str, str]:
    return {"prompt": row["question"], "completion": row["answer"]}


def as_text(row: dict[str, str]) -> dict[str, str]:
    return {"text": f"{row['question']} {row['answer']}"}


def word_overlap(texts: tuple[list[str], list[str]]) -> dict[str, float]:
    return {"overlap": 1.0}


class Patience:
    """A callback with state and the default repr."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.best = math.inf


def parent() -> RunConfig:
    """A GRPO run with everything a clone could forget."""
    return RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]),
        training_args=RFGRPOConfig(max_steps=7, learning_rate=1e-4, num_generations=2),
        reward_funcs=[brevity, politeness],
        formatting_func=as_prompt,
        compute_metrics=word_overlap,
        callbacks=[Patience(3)],
        generation_config={"max_new_tokens": 24, "do_sample": False, "temperature": 0.7},
        model_kwargs={"attn_implementation": "eager"},
        seed=11,
        rollout_func=as_text,
    ).build("GRPO")


def message(call: Callable[[], object]) -> str:
    """The one line with which a call is refused."""
    with pytest.raises(ConfigError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    return text


# ------------------------------------------------------------------------------------- light import


def test_importing_config_and_search_pulls_in_only_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules);"
        "import rapidfire_jupyter.config, rapidfire_jupyter.search;"
        "new = {n.partition('.')[0] for n in set(sys.modules) - before};"
        "print(*(new - set(sys.stdlib_module_names) - {'rapidfire_jupyter'}))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    )

    assert done.stdout.strip() == ""


# ----------------------------------------------------------------------------------- list and range


def test_a_list_owns_its_values_and_refuses_what_has_no_order_or_no_value() -> None:
    modules = ["q_proj"]
    choice = List([modules, "all-linear", None])
    modules.append("k_proj")

    assert choice.values == (["q_proj"], "all-linear", None)
    assert choice == List([["q_proj"], "all-linear", None])
    assert message(lambda: List([])) == (
        "List must hold at least one value, got none; write List([a, b])"
    )
    assert "List needs values in an order, got 'abc'" in message(lambda: List("abc"))
    assert "in an order" in message(lambda: List({1, 2}))
    assert "in an order" in message(lambda: List(3))  # type: ignore[arg-type]


def test_numpy_numbers_become_plain_numbers() -> None:
    config = RFSFTConfig(learning_rate=List(np.linspace(0.1, 0.2, 2)), max_steps=np.int64(3))

    assert config.given["learning_rate"].values == (0.1, 0.2)
    assert {type(v) for v in config.given["learning_rate"].values} == {float}
    assert type(config.given["max_steps"]) is int


def test_a_range_of_ints_is_whole_and_any_float_makes_it_fractional() -> None:
    assert Range(4, 64).dtype == "int"
    assert Range(0, 1, step=0.25).dtype == "float"
    assert Range(1.0, 8.0, dtype="int") == Range(1, 8)
    assert isinstance(Range(0, 0.1).start, float)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Range(3, 3), "Range needs start < end, got start=3, end=3"),
        (lambda: Range(1, 5, log=True, step=1), "Range takes log or step"),
        (lambda: Range(0, 5, log=True), "needs start > 0, got 0"),
        (lambda: Range(1, 5, step=0), "step must be > 0, got 0"),
        (lambda: Range(1, 5, dtype="complex"), "dtype must be 'int', 'float' or None"),  # type: ignore[arg-type]
        (lambda: Range(1, 5.5, dtype="int"), "needs whole numbers, got [1, 5.5]"),
        (lambda: Range(1, math.inf), "finite numbers, got inf"),
        (lambda: Range("1", 2), "finite numbers, got '1'"),  # type: ignore[arg-type]
        (lambda: Range(False, True), "finite numbers, got False"),
    ],
)
def test_impossible_ranges_are_refused(make: Callable[[], Range], text: str) -> None:
    assert text in message(make)


# --------------------------------------------------------------------------------- recorded configs


def test_a_config_keeps_exactly_what_was_given_and_falls_back_to_the_class() -> None:
    config = RFLoraConfig(r=16, target_modules=["q_proj"])

    assert dict(config.given) == {"r": 16, "target_modules": ["q_proj"]}
    assert config.r == 16
    assert config.lora_dropout == 0.0
    assert config.rank_pattern == {}
    assert repr(config) == "RFLoraConfig(r=16, target_modules=['q_proj'])"
    with pytest.raises(AttributeError, match="RFLoraConfig has no argument 'rnk'"):
        _ = config.rnk


def test_nothing_that_is_handed_in_or_out_reaches_the_config() -> None:
    modules, extra = ["q_proj"], {"attn": {"impl": "eager"}}
    lora = RFLoraConfig(target_modules=modules)
    model = RFModelConfig("tiny", model_kwargs=extra)

    modules.append("v_proj")
    extra["attn"]["impl"] = "sdpa"
    lora.target_modules.append("k_proj")
    lora.given["target_modules"].append("o_proj")

    assert lora.target_modules == ["q_proj"]
    assert model.model_kwargs == {"attn": {"impl": "eager"}}
    assert "use .copy(r=3)" in message(lambda: setattr(lora, "r", 3))
    with pytest.raises(TypeError):
        lora.given["r"] = 3  # type: ignore[index]


def test_copies_compare_and_travel() -> None:
    config = RFSFTConfig(learning_rate=List([1e-3, Range(1e-5, 1e-4, log=True)]), max_steps=5)

    assert config.copy() == config
    assert config.copy(max_steps=9).given["max_steps"] == 9
    assert config.max_steps == 5
    assert pickle.loads(pickle.dumps(config)) == config
    assert copy.deepcopy(config) == config
    assert config != RFDPOConfig(**config.given)
    assert pickle.loads(pickle.dumps(parent().model.copy(callbacks=None))) is not None


def test_build_makes_the_real_object_with_exactly_the_given_arguments(tmp_path: Path) -> None:
    import peft

    lora = RFLoraConfig(r=4, lora_alpha=8, target_modules=["q_proj"], task_type="CAUSAL_LM")
    args = RFSFTConfig(eval_strategy="chunk", save_strategy="chunk", learning_rate=1e-3)

    built = lora.build()
    sft = args.build(output_dir=str(tmp_path), use_cpu=True, bf16=False)

    assert built == peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj"], task_type="CAUSAL_LM"
    )
    assert built.target_modules is not lora.build().target_modules
    assert (type(sft).__name__, sft.learning_rate, sft.eval_strategy) == ("SFTConfig", 1e-3, "no")
    assert "still has choices" in message(RFLoraConfig(r=List([1, 2])).build)


# ------------------------------------------------------------------------------- names, old and new


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: RFSFTConfig(max_seq_length=96),
            "RFSFTConfig has no argument 'max_seq_length'; it is called 'max_length' now",
        ),
        (
            lambda: RFGRPOConfig(max_seq_length=96),
            "RFGRPOConfig has no argument 'max_seq_length'; "
            "it is called 'max_completion_length' now",
        ),
        (
            lambda: RFDPOConfig(evaluation_strategy="steps"),
            "RFDPOConfig has no argument 'evaluation_strategy'; it is called 'eval_strategy' now",
        ),
        (
            lambda: RFSFTConfig(warmup_step=3),
            "RFSFTConfig has no argument 'warmup_step'; did you mean 'warmup_steps'",
        ),
        (lambda: RFSFTConfig(no_cuda=True), "it is called 'use_cpu' now"),
        (lambda: RFLoraConfig(lora_r=8), "it is called 'r' now"),
        (lambda: RFLoraConfig(target_module="q"), "did you mean 'target_modules'"),
        (lambda: RFDPOConfig(max_prompt_length=64), "TRL no longer cuts prompts; max_length"),
        (lambda: RFSFTConfig(tokenizer="x"), "give RFModelConfig(tokenizer=...)"),
        (
            lambda: RFSFTConfig(group_by_length=True),
            'use train_sampling_strategy="group_by_length"',
        ),
        (lambda: RFSFTConfig(logging_dir="logs"), "leave it out"),
        (lambda: RFSFTConfig(lora_alpha=8), "'lora_alpha' is an argument of RFLoraConfig"),
        (
            lambda: RFSFTConfig(num_generations=8),
            "'num_generations' is an argument of RFGRPOConfig",
        ),
        (lambda: RFLoraConfig(lr=1e-3), "'learning_rate' is an argument of RFSFTConfig"),
        (lambda: RFSFTConfig(qqq=1), "see help(trl.SFTConfig)"),
    ],
)
def test_unknown_and_renamed_arguments_are_refused_with_the_name_to_use(
    make: Callable[[], object], text: str
) -> None:
    assert text in message(make)


def test_the_tables_name_only_what_the_installed_classes_have_or_lack() -> None:
    everything = {name for cls in WRAPPERS for name in cls.arguments()}
    trained = {name for cls in WRAPPERS[1:] for name in cls.arguments()}

    assert not everything & set(RENAMED)
    assert not everything & set(GONE)
    assert {new for names in RENAMED.values() for new in names} <= everything | set(MODEL_ARGUMENTS)
    assert set(OWNED) <= trained
    assert set(BOUNDS) - {"warmup_ratio"} <= everything
    assert {name.rpartition(".")[2] for name in WIDER} <= everything


def test_every_default_of_the_wrapped_classes_would_be_accepted() -> None:
    for cls in WRAPPERS:
        for name, argument in cls.arguments().items():
            assert cls(**{name: argument.default}).given[name] == argument.default


def test_warmup_ratio_is_recorded_as_warmup_steps_with_a_notice() -> None:
    with pytest.warns(
        UserWarning, match=r"warmup_ratio=0\.1 is recorded as warmup_steps=0\.1"
    ) as w:
        config = RFSFTConfig(warmup_ratio=0.1)
    with pytest.warns(UserWarning, match="warmup_ratio"):
        changed = RFSFTConfig(warmup_steps=20).copy(warmup_ratio=List([0.0, 0.2]))

    assert dict(config.given) == {"warmup_steps": 0.1}
    assert w[0].filename == __file__
    assert changed.given["warmup_steps"] == List([0.0, 0.2])
    assert "warmup_ratio must be >= 0 and < 1, got 1.0" in message(
        lambda: RFSFTConfig(warmup_ratio=1.0)
    )
    assert "one argument now, got both" in message(
        lambda: RFSFTConfig(warmup_ratio=0.1, warmup_steps=5)
    )


def test_warmup_ratio_means_the_same_to_the_installed_transformers(tmp_path: Path) -> None:
    args = RFSFTConfig(warmup_steps=0.1).build(output_dir=str(tmp_path), use_cpu=True, bf16=False)

    assert args.get_warmup_steps(200) == 20


# --------------------------------------------------------------------------------- types and bounds


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: RFSFTConfig(learning_rate="fast"),
            "RFSFTConfig: learning_rate must be a number, got 'fast' (str); "
            "write for example learning_rate=2e-05",
        ),
        (
            lambda: RFSFTConfig(per_device_train_batch_size="4"),
            "RFSFTConfig: per_device_train_batch_size must be a whole number, got '4' (str); "
            "write per_device_train_batch_size=4 without quotes",
        ),
        (lambda: RFLoraConfig(r=8.0), "r must be a whole number, got 8.0 (float); write r=8"),
        (
            lambda: RFLoraConfig(r=3.5),
            "r must be a whole number, got 3.5 (float); write for example",
        ),
        (
            lambda: RFSFTConfig(max_tokens_per_batch=float("nan")),
            "max_tokens_per_batch must be a whole number or None, got nan",
        ),
        (lambda: RFSFTConfig(max_tokens_per_batch=512.0), "write max_tokens_per_batch=512"),
        (lambda: RFLoraConfig(r=True), "r must be a whole number, got True (bool)"),
        (lambda: RFSFTConfig(packing=1), "packing must be True or False, got 1 (int)"),
        (lambda: RFSFTConfig(packing="true"), "write packing=True without quotes"),
        (
            lambda: RFSFTConfig(learning_rate=[1e-3, 1e-4]),
            "to compare several values write learning_rate=List([...])",
        ),
        (lambda: RFLoraConfig(target_modules=["q_proj", 7]), "target_modules must be"),
        (lambda: RFLoraConfig(bias="some"), "one of 'none', 'all', 'lora_only', got 'some'"),
        (lambda: RFLoraConfig(init_lora_weights="pisa"), "did you mean 'pissa'"),
        (lambda: RFLoraConfig(task_type="CAUSAL"), "did you mean 'CAUSAL_LM'"),
        (lambda: RFSFTConfig(lr_scheduler_type="cosin"), "did you mean 'cosine'"),
        (
            lambda: RFSFTConfig(eval_strategy="often"),
            "eval_strategy must be one of 'no', 'steps', 'epoch', 'chunk', got 'often'",
        ),
        (lambda: RFSFTConfig(train_sampling_strategy="sorted"), "'random', 'sequential'"),
        (lambda: RFSFTConfig(model_init_kwargs=[1]), "model_init_kwargs must be a dict"),
        (lambda: RFSFTConfig(loss_type=["nll"]), "loss_type must be one of 'nll', 'dft'"),
        (lambda: RFSFTConfig(learning_rate=List([1e-3, "x"])), "learning_rate must be a number"),
        (lambda: RFLoraConfig(r=Range(4.0, 64.0)), "r must be a whole number, got 4.0"),
        (lambda: RFModelConfig("tiny", seed="7"), "write seed=7 without quotes"),
        (lambda: RFModelConfig("tiny", formatting_func=[as_text]), "write formatting_func=List"),
        (lambda: RFModelConfig(None), "model_name must be a text, got None"),
    ],
)
def test_wrong_types_are_refused_with_rule_value_and_fix(
    make: Callable[[], object], text: str
) -> None:
    assert text in message(make)


@pytest.mark.parametrize(
    ("cls", "name", "bad", "rule"),
    [
        (RFLoraConfig, "r", 0, "must be >= 1, got 0; the default is 8"),
        (RFLoraConfig, "lora_alpha", 0, "must be > 0"),
        (RFLoraConfig, "lora_dropout", 1.0, "must be >= 0 and < 1"),
        (RFSFTConfig, "learning_rate", 0.0, "must be > 0"),
        (RFSFTConfig, "learning_rate", math.nan, "must be finite, got nan"),
        (RFSFTConfig, "weight_decay", math.inf, "must be finite"),
        (RFSFTConfig, "weight_decay", -0.1, "must be >= 0"),
        (RFSFTConfig, "per_device_eval_batch_size", 0, "must be >= 1"),
        (RFSFTConfig, "gradient_accumulation_steps", 0, "must be >= 1"),
        (RFSFTConfig, "num_train_epochs", 0, "must be > 0"),
        (RFSFTConfig, "max_steps", 0, "must be -1 (no limit) or >= 1, got 0"),
        (RFSFTConfig, "max_grad_norm", -1.0, "must be >= 0"),
        (RFSFTConfig, "max_length", 0, "must be >= 1"),
        (RFSFTConfig, "logging_steps", 0, "must be > 0"),
        (RFSFTConfig, "save_steps", 1.5, "must be > 0, and whole from 1 on, got 1.5"),
        (RFSFTConfig, "warmup_steps", -1, "must be >= 0"),
        (RFDPOConfig, "beta", -0.1, "must be >= 0"),
        (RFGRPOConfig, "num_generations", 1, "must be >= 2"),
        (RFGRPOConfig, "top_p", 0.0, "must be > 0 and <= 1"),
        (RFSFTConfig, "seed", -1, "must be >= 0"),
        (RFSFTConfig, "lr_scheduler_kwargs", {"min_lr": math.nan}, "must be finite"),
    ],
)
def test_impossible_values_are_refused_alone_and_inside_a_list(
    cls: type[Recorded], name: str, bad: object, rule: str
) -> None:
    good = cls.arguments()[name].default

    assert f"{cls.__name__}: {name} {rule}" in message(lambda: cls(**{name: bad}))
    assert f"{cls.__name__}: {name} {rule}" in message(lambda: cls(**{name: List([good, bad])}))


def test_both_ends_of_a_range_are_checked() -> None:
    assert "r must be >= 1, got 0" in message(lambda: RFLoraConfig(r=Range(0, 8)))
    assert "lora_dropout must be >= 0 and < 1, got 1.0" in message(
        lambda: RFLoraConfig(lora_dropout=Range(0.0, 1.0))
    )


def test_values_that_the_libraries_take_are_taken() -> None:
    from peft import LoftQConfig, TaskType
    from transformers.trainer_utils import IntervalStrategy, SchedulerType

    RFLoraConfig(
        target_modules={"q_proj"},
        lora_alpha=16.5,
        init_lora_weights="pissa_niter_4",
        task_type=TaskType.CAUSAL_LM,
        loftq_config=LoftQConfig(),
        rank_pattern={"q_proj": 4},
        layers_to_transform=[0, 1],
    )
    RFSFTConfig(
        num_train_epochs=1,
        eval_strategy=IntervalStrategy.EPOCH,
        save_strategy="chunk",
        lr_scheduler_type=SchedulerType.COSINE,
        optim="sgd",
        warmup_steps=0.1,
        report_to=["tensorboard"],
        max_length=None,
        model_init_kwargs={"dtype": "bfloat16"},
        save_total_limit=3,
    )
    RFDPOConfig(loss_type=["sigmoid", "sft"], loss_weights=[1, 0.5])
    RFGRPOConfig(scale_rewards=False, max_completion_length=None)


@pytest.mark.parametrize("name", sorted(OWNED))
def test_what_the_engine_owns_is_refused_with_the_way_to_get_it(name: str) -> None:
    value = {"output_dir": "out", "resume_from_checkpoint": "out", "fsdp": "full_shard"}.get(name)
    value = value or ({"stage": 2} if name in ("deepspeed", "fsdp_config") else True)

    assert f"{name} cannot be set" in message(lambda: RFSFTConfig(**{name: value}))
    default = RFSFTConfig.arguments()[name].default
    assert OWNED[name] in message(lambda: RFSFTConfig(**{name: List([default, value])}))
    RFSFTConfig(**{name: default})


# ------------------------------------------------------------------------------------ model configs


def test_other_keywords_go_to_the_trainer_but_misspellings_are_refused() -> None:
    model = RFModelConfig("tiny", compute_loss_func=as_text, optimizers=(None, None))

    assert model.trainer_kwargs == {"compute_loss_func": as_text, "optimizers": (None, None)}
    assert model.copy().trainer_kwargs == model.trainer_kwargs
    assert "did you mean 'training_args'" in message(
        lambda: RFModelConfig("tiny", training_arg=RFSFTConfig())
    )
    assert "did you mean 'peft_config'" in message(
        lambda: RFModelConfig("tiny", peft_confg=RFLoraConfig())
    )
    assert "it is called 'tokenizer' now" in message(
        lambda: RFModelConfig("tiny", processing_class="x")
    )
    assert "give it to run_fit" in message(lambda: RFModelConfig("tiny", train_dataset=[]))
    other = "(max_tokens_per_batch=512), or that of another trainer"
    for give, text in (
        ({"learning_rate": 1e-3}, "; write training_args=RFSFTConfig(learning_rate=0.001), or "),
        ({"max_tokens_per_batch": 512}, f"; write training_args=RFSFTConfig{other}"),
        ({"num_generations": 4}, "; write training_args=RFGRPOConfig(num_generations=4), or "),
        ({"lora_alpha": 4}, "; write peft_config=RFLoraConfig(lora_alpha=4)"),
        ({"hub_token": "abc"}, "; write training_args=RFSFTConfig(hub_token=...), or "),
    ):
        assert text in message(lambda give=give: RFModelConfig("tiny", **give))


def test_peft_config_takes_any_peft_method_and_its_arguments() -> None:
    from peft import LoHaConfig

    model = RFModelConfig("tiny", peft_config=List([None, LoHaConfig(r=4), RFLoraConfig(r=4)]))

    assert model.given["peft_config"].values[1].r == 4
    assert "peft_config must be RFLoraConfig, a peft.PeftConfig or None" in message(
        lambda: RFModelConfig("tiny", peft_config={"r": 8})
    )
    assert "several in a List" in message(
        lambda: RFModelConfig("tiny", peft_config=[RFLoraConfig(), RFLoraConfig(r=4)])
    )
    assert "write training_args=RFSFTConfig(...)" in message(
        lambda: RFModelConfig("tiny", training_args={"beta": 1})
    )


def test_one_config_becomes_a_run_config_of_the_right_trainer() -> None:
    model = RFModelConfig(Path("models") / "tiny", training_args=RFDPOConfig(beta=0.2))

    assert model.model_name == "models/tiny"
    assert model.build().trainer_type == "DPO"
    assert RFModelConfig("tiny").build("sft").model.training_args == RFSFTConfig()
    assert message(lambda: model.build("SFT")) == (
        "trainer_type='SFT' takes RFSFTConfig, got training_args=RFDPOConfig(...); "
        "use trainer_type='DPO', or RFSFTConfig(...)"
    )
    assert "RLOO and GRPO take its place" in message(lambda: model.build("PPO"))
    assert "GRPO needs a reward" in message(lambda: RFModelConfig("tiny").build("GRPO"))
    assert "still has choices" in message(lambda: model.copy(seed=List([1, 2])).build())


def test_secrets_are_neither_shown_nor_written_down() -> None:
    run = RFModelConfig(
        "tiny", training_args=RFSFTConfig(hub_token="hf_abc"), model_kwargs={"token": "hf_xyz"}
    ).build()

    written = encode(flatten(run))

    assert "hf_" not in repr(run)
    assert "hf_" not in json.dumps(written)
    assert "was a secret" in message(lambda: decode(written))
    assert differences(written, encode(flatten(modify(run, {"hub_token": "hf_new"})))).keys() == {
        "training_args.hub_token"
    }


# ------------------------------------------------------------------ flatten, encode, decode, differ


def test_flatten_gives_dotted_names_of_what_was_given() -> None:
    flat = flatten(parent())

    assert flat["trainer_type"] == "GRPO"
    assert flat["training_args.max_steps"] == 7
    assert flat["peft_config.target_modules"] == ["q_proj", "v_proj"]
    assert flat["generation_config.max_new_tokens"] == 24
    assert flat["trainer_kwargs.rollout_func"] is as_text
    assert flat["reward_funcs"] == [brevity, politeness]
    assert "training_args.weight_decay" not in flat
    assert "model_type" not in flat


def test_an_adapter_with_all_defaults_differs_from_none() -> None:
    with_adapter = RFModelConfig("tiny", peft_config=RFLoraConfig()).build()

    changed = differences(
        encode(flatten(RFModelConfig("tiny").build())), encode(flatten(with_adapter))
    )

    assert changed == {"peft_config": (None, {"config": "RFLoraConfig", "given": {}})}


def test_plain_values_survive_being_written_down_and_read_back() -> None:
    import torch

    value = {
        "config": {"peft_config": RFLoraConfig(r=4, target_modules=["q_proj"])},
        "dtype": torch.bfloat16,
        "ids": {3: 0.5},
        "callable": "a key that looks like a mark",
        "nested": [1, 2.5, None, True, {"a": "b"}],
    }

    text = json.dumps(encode(value))

    assert decode(json.loads(text)) == value
    assert encode((1, {"b", "a"})) == [1, ["a", "b"]]
    assert "finite numbers, got nan" in message(lambda: encode({"a": [math.nan]}))


def test_functions_and_objects_are_written_as_digests_and_asked_for_again() -> None:
    written = encode(flatten(parent()))
    again = encode(flatten(parent()))

    assert written == again
    assert json.loads(json.dumps(written)) == written
    assert written["formatting_func"]["callable"] == f"{__name__}.as_prompt"
    assert message(lambda: decode(written["formatting_func"], "formatting_func")) == (
        f"formatting_func was {__name__}.as_prompt, which cannot be stored; give it again"
    )
    assert "value.callbacks was" in message(lambda: decode({"callbacks": written["callbacks"]}))


def test_functions_that_do_different_things_are_told_apart() -> None:
    def scaled(by: float) -> Callable[[float], float]:
        def scale(value: float) -> float:
            return value * by

        return scale

    # In one line on purpose: their source text is the same.
    first, second, third = (lambda r: r["a"]), (lambda r: r["b"]), (lambda r: r["a"])
    quiet, loud = functools.partial(as_text, mark="."), functools.partial(as_text, mark="!")

    assert encode(first) != encode(second)
    assert encode(first)["source"] == encode(third)["source"]
    assert encode(scaled(1.0)) != encode(scaled(2.0))
    assert encode(scaled(2.0)) == encode(scaled(2.0))
    assert encode(quiet) != encode(loud)
    assert encode(Patience(3)) != encode(Patience(4))
    assert encode(Patience(3)) == encode(Patience(3))
    assert " at 0x" not in json.dumps(encode([object(), scaled, Patience]))


def test_an_object_that_holds_itself_can_be_written_down() -> None:
    loop = Patience(1)
    loop.me = loop  # type: ignore[attr-defined]
    cycle: dict[str, object] = {}
    cycle["again"] = cycle
    loop.cycle = cycle  # type: ignore[attr-defined]

    assert encode(loop)["object"].endswith("Patience")


def test_library_objects_are_written_with_their_fields() -> None:
    from peft import LoHaConfig
    from transformers import GenerationConfig

    loha, longer = LoHaConfig(r=4), GenerationConfig(max_new_tokens=9)

    assert encode(loha)["fields"]["r"] == 4
    assert encode(longer)["fields"]["max_new_tokens"] == 9
    assert encode(loha) != encode(LoHaConfig(r=8))


def test_objects_that_only_summarise_themselves_are_the_same_only_if_they_are_one() -> None:
    import torch

    one, other = torch.zeros(3000), torch.zeros(3000)

    def of(tensor: object) -> object:
        return same_key(RFModelConfig("tiny", model_kwargs={"bias": tensor}).build())

    assert of(one) == of(one)
    assert of(one) != of(other)


# -------------------------------------------------------------------------------- changing a config


@pytest.mark.parametrize("changes", [{}, {"learning_rate": "3e-4"}, {"peft_config.r": 8}])
def test_a_changed_config_equals_its_parent_in_every_other_field(
    changes: dict[str, object],
) -> None:
    before = parent()
    written = encode(flatten(before))

    after = modify(before, changes)

    changed = differences(written, encode(flatten(after)))
    assert encode(flatten(before)) == written
    assert changed.keys() <= {"training_args.learning_rate", "peft_config.r"}
    assert len(changed) == len(changes)
    assert after.model.reward_funcs == [brevity, politeness]
    assert after.model.callbacks[0] is before.model.callbacks[0]
    assert after.model.compute_metrics is word_overlap
    assert after.model.trainer_kwargs == {"rollout_func": as_text}
    assert after.model.training_args.max_steps == 7


def test_changes_that_were_stored_give_the_same_config_in_a_new_kernel() -> None:
    changes = {
        "learning_rate": "3e-4",
        "peft_config": RFLoraConfig(r=2, target_modules=["q_proj"]),
        "generation_config": {"max_new_tokens": 4},
    }

    stored = json.dumps(encode(changes))

    assert modify(parent(), decode(json.loads(stored))).model.peft_config.r == 2
    assert encode(flatten(modify(parent(), decode(json.loads(stored))))) == encode(
        flatten(modify(parent(), changes))
    )


def test_numbers_given_as_text_become_the_type_of_their_field() -> None:
    after = modify(
        parent(),
        {
            "training_args.learning_rate": "3e-4",
            "max_steps": " 12 ",
            "seed": "5",
            "use_dora": "true",
            "generation_config.temperature": "0.2",
            "generation_config.do_sample": "True",
        },
    )

    assert after.model.training_args.learning_rate == 3e-4
    assert after.model.training_args.max_steps == 12
    assert after.model.seed == 5
    assert after.model.peft_config.use_dora is True
    assert after.model.generation_config == {
        "max_new_tokens": 24,
        "do_sample": True,
        "temperature": 0.2,
    }


def test_functions_and_whole_parts_can_be_changed() -> None:
    before = parent()

    after = modify(
        before,
        {
            "formatting_func": as_text,
            "peft_config.lora_alpha": 64,
            "peft_config": RFLoraConfig(r=32),
            "tokenizer_kwargs.padding_side": "left",
        },
    )

    assert after.model.formatting_func is as_text
    assert after.model.peft_config == RFLoraConfig(r=32, lora_alpha=64)
    assert after.model.tokenizer_kwargs == {"padding_side": "left"}
    assert before.model.formatting_func is as_prompt
    assert modify(before, {"peft_config": None}).model.peft_config is None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"learning_rat": 1}, "a config has no field 'learning_rat'; did you mean 'learning_rate'"),
        ({"train_args.max_steps": 1}, "did you mean 'training_args.max_steps'"),
        ({"training_args.max_step": 1}, "RFGRPOConfig has no argument 'max_step'"),
        ({"max_seq_length": 9}, "it is called 'max_completion_length' now"),
        ({"packing": True}, "'packing' is an argument of RFSFTConfig"),
        ({"learning_rate": "fast"}, "learning_rate must be a number, got 'fast'"),
        ({"r": 0}, "r must be >= 1"),
        ({"r": List([1, 2])}, "r of one run takes one value, got List([1, 2])"),
        ({"r": 4, "peft_config.r": 8}, "peft_config.r is changed twice"),
        ({"peft_config": {"r": 8}}, "peft_config must be RFLoraConfig"),
        ({"training_args": RFDPOConfig()}, "trainer_type='GRPO' takes RFGRPOConfig"),
        ({"generation_config.temperature": "hot"}, "is 0.7, got 'hot'; give a number"),
        ({"formatting_func.x": 1}, "has no part 'x'; change formatting_func as a whole"),
        ({"model_name": None}, "model_name must be a text, got None"),
    ],
)
def test_changes_that_do_not_fit_are_refused(changes: dict[str, object], text: str) -> None:
    assert text in message(lambda: modify(parent(), changes))


def test_a_name_that_two_parts_have_must_be_written_in_full() -> None:
    run = RFModelConfig(
        "tiny", model_kwargs={"revision": "a"}, tokenizer_kwargs={"revision": "a"}
    ).build()

    assert message(lambda: modify(run, {"revision": "b"})) == (
        "'revision' is ambiguous; write tokenizer_kwargs.revision or model_kwargs.revision"
    )


def test_a_part_of_no_adapter_is_refused_with_the_reason() -> None:
    run = RFModelConfig("tiny").build()

    assert "peft_config is None and has no part 'r'" in message(
        lambda: modify(run, {"peft_config.r": 8})
    )
    assert "'r' is an argument of RFLoraConfig" in message(lambda: modify(run, {"r": 8}))


def test_a_run_can_move_to_another_trainer_with_arguments_of_its_own() -> None:
    run = RFModelConfig("tiny", training_args=RFSFTConfig(max_steps=3)).build()

    after = modify(run, {"trainer_type": "dpo", "training_args": RFDPOConfig(beta=0.3)})

    assert (after.trainer_type, after.model.training_args.beta) == ("DPO", 0.3)


def test_a_clone_in_steps_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        modify(parent(), {"warmup_steps": "0.1"})
