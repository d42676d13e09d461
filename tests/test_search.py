"""Searches: the exact product, fair and repeatable draws, and nothing of the user's touched."""

import copy
import inspect
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from rapidfire_jupyter.choices import Linked, List, Range
from rapidfire_jupyter.config import RFModelConfig, RunConfig, flatten
from rapidfire_jupyter.encoding import encode
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.recorded import RFDPOConfig, RFGRPOConfig, RFLoraConfig, RFSFTConfig
from rapidfire_jupyter.search import (
    RFGridSearch,
    RFRandomSearch,
    Search,
    as_runs,
    as_search,
    batch_note,
)
from rapidfire_jupyter.space import chosen, coordinates, walk
from rapidfire_jupyter.suggestions import RFOptuna


def short_answers(completions: list[str], **kwargs: object) -> list[float]:
    return [1.0 / (1 + len(text)) for text in completions]


def kind_answers(completions: list[str], **kwargs: object) -> list[float]:
    return [float("thank" in text) for text in completions]


def question_first(row: dict[str, str]) -> dict[str, str]:
    return {"prompt": row["q"], "completion": row["a"]}


def answer_first(row: dict[str, str]) -> dict[str, str]:
    return {"prompt": row["a"], "completion": row["q"]}


def exact_match(texts: tuple[list[str], list[str]]) -> dict[str, float]:
    return {"exact": 1.0}


def length_ratio(texts: tuple[list[str], list[str]]) -> dict[str, float]:
    return {"ratio": 1.0}


def message(call: Callable[[], object]) -> str:
    """The one line with which a call is refused."""
    with pytest.raises(ConfigError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    return text


def rates(runs: list[RunConfig]) -> list[float]:
    return [run.model.training_args.learning_rate for run in runs]


# --------------------------------------------------------------------------------------------- grid


def test_the_grid_of_the_quickstart_has_its_four_runs_in_order() -> None:
    small = RFLoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"])
    large = RFLoraConfig(r=32, lora_alpha=64, target_modules="all-linear")
    configs = RFModelConfig(
        "tiny",
        peft_config=List([small, large]),
        training_args=RFSFTConfig(learning_rate=List([1e-3, 1e-4]), num_train_epochs=1),
    )

    search = RFGridSearch(configs, trainer_type="SFT")
    runs = search.runs()

    assert [(r.model.peft_config, r.model.training_args.learning_rate) for r in runs] == [
        (small, 1e-3),
        (small, 1e-4),
        (large, 1e-3),
        (large, 1e-4),
    ]
    assert {run.trainer_type for run in runs} == {"SFT"}
    assert runs[0].model.peft_config.target_modules == ["q_proj", "v_proj"]
    assert search.describe() == "4 runs: 2 peft_config x 2 training_args.learning_rate"


def test_lists_on_every_kind_of_field_give_exactly_the_product_all_distinct() -> None:
    models, rates_, ranks = ["tiny", "other"], [3e-4, 3e-5, 3e-6], [2, 4]
    formats, metrics = [question_first, answer_first], [exact_match, length_ratio]
    rewards = [[short_answers], [short_answers, kind_answers]]
    decoding = [{"max_new_tokens": 8}, {"max_new_tokens": 16}]
    configs = [
        RFModelConfig(
            name,
            peft_config=RFLoraConfig(r=List(ranks)),
            training_args=RFGRPOConfig(learning_rate=List(rates_)),
            formatting_func=List(formats),
            compute_metrics=List(metrics),
            reward_funcs=List(rewards),
            generation_config=List(decoding),
        )
        for name in models
    ]

    search = RFGridSearch(configs, trainer_type="GRPO")
    runs = search.runs()

    def key(run: RunConfig) -> tuple[object, ...]:
        model = run.model
        return (
            model.model_name,
            model.peft_config.r,
            model.training_args.learning_rate,
            model.formatting_func,
            model.compute_metrics,
            len(model.reward_funcs),
            model.generation_config["max_new_tokens"],
        )

    wanted = set(itertools.product(models, ranks, rates_, formats, metrics, (1, 2), (8, 16)))
    assert len(runs) == len(wanted) == 192
    assert {key(run) for run in runs} == wanted
    assert len({id(run) for run in runs}) == len({id(run.model) for run in runs}) == 192
    assert search.duplicates == 0
    assert search.describe().startswith("192 runs: 96 of config 1 (2 formatting_func x ")
    assert [key(run) for run in search.runs()] == [key(run) for run in runs]


def test_lists_nested_in_alternatives_and_in_containers_are_expanded() -> None:
    configs = RFModelConfig(
        "tiny",
        peft_config=List([None, RFLoraConfig(r=List([4, 8]), target_modules=["q_proj"])]),
        model_kwargs={"attn_implementation": List(["eager", "sdpa"])},
        callbacks=[List(["a", "b"]), "c"],
    )

    search = RFGridSearch(configs)
    runs = search.runs()

    seen = [
        (
            run.model.peft_config.r if run.model.peft_config else None,
            run.model.model_kwargs["attn_implementation"],
            run.model.callbacks,
        )
        for run in runs
    ]
    assert seen == [
        (rank, attention, [callback, "c"])
        for rank in (None, 4, 8)
        for attention in ("eager", "sdpa")
        for callback in ("a", "b")
    ]
    assert search.describe() == (
        "12 runs: 3 peft_config x 2 model_kwargs.attn_implementation x 2 callbacks[0]"
    )


def test_alternatives_with_choices_of_their_own_add_up_and_do_not_multiply() -> None:
    configs = RFModelConfig(
        "tiny",
        training_args=List(
            [
                RFSFTConfig(learning_rate=List([1e-3, 1e-4]), packing=True),
                RFSFTConfig(max_length=List([64, 128, 256])),
            ]
        ),
    )

    runs = RFGridSearch(configs).runs()

    assert [dict(run.model.training_args.given) for run in runs] == [
        {"learning_rate": 1e-3, "packing": True},
        {"learning_rate": 1e-4, "packing": True},
        {"max_length": 64},
        {"max_length": 128},
        {"max_length": 256},
    ]


def test_a_range_with_a_step_is_enumerated_up_to_its_end() -> None:
    configs = RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(r=Range(4, 17, step=6)),
        training_args=RFSFTConfig(weight_decay=Range(0.0, 0.3, step=0.1)),
    )

    search = RFGridSearch(configs)
    runs = search.runs()

    assert [r.model.peft_config.r for r in runs[::4]] == [4, 10, 16]
    assert [r.model.training_args.weight_decay for r in runs[:4]] == [0.0, 0.1, 0.2, 0.3]
    assert search.describe() == "12 runs: 3 peft_config.r x 4 training_args.weight_decay"


def test_a_range_without_a_step_has_no_place_in_a_grid() -> None:
    configs = RFModelConfig(
        "tiny", training_args=RFSFTConfig(learning_rate=List([1e-3, Range(1e-5, 1e-4, log=True)]))
    )

    text = message(lambda: RFGridSearch(configs))

    assert text.startswith("a grid cannot enumerate training_args.learning_rate=Range(")
    assert text.endswith("use step=, or RFRandomSearch")


def test_a_grid_too_large_to_mean_is_refused() -> None:
    configs = RFModelConfig("tiny", seed=Range(0, 99_999, step=1))

    assert "this grid has 100000 runs, more than 10000" in message(lambda: RFGridSearch(configs))


def test_combinations_that_come_twice_are_kept_once_and_told() -> None:
    same = RFLoraConfig(r=4, target_modules=["q_proj"])
    configs = RFModelConfig(
        "tiny",
        peft_config=List([same, RFLoraConfig(r=4, target_modules=["q_proj"]), RFLoraConfig(r=8)]),
        seed=List([1, 1, 2]),
    )

    search = RFGridSearch(configs)

    assert [(r.model.peft_config.r, r.model.seed) for r in search.runs()] == [
        (4, 1),
        (4, 2),
        (8, 1),
        (8, 2),
    ]
    assert search.duplicates == 5
    assert search.describe() == "4 runs: 3 peft_config x 3 seed; 5 duplicate(s) left out"


def test_two_lambdas_in_one_list_are_two_choices() -> None:
    configs = RFModelConfig("tiny", formatting_func=List([lambda r: r["a"], lambda r: r["b"]]))

    runs = RFGridSearch(configs).runs()

    assert [run.model.formatting_func({"a": 1, "b": 2}) for run in runs] == [1, 2]


def test_replicates_differ_by_their_seed_only() -> None:
    runs = as_runs(RFModelConfig("tiny", training_args=RFSFTConfig(), seed=List([1, 2, 3])))

    assert [run.model.seed for run in runs] == [1, 2, 3]
    assert [flatten(run).keys() for run in runs] == [flatten(runs[0]).keys()] * 3


def test_the_users_objects_are_never_modified_and_runs_share_no_containers() -> None:
    from peft import LoHaConfig

    loha = LoHaConfig(r=4, target_modules=["q_proj"])
    kwargs = {"attn_implementation": "eager", "extra": {"a": [1]}}
    configs = RFModelConfig(
        "tiny", peft_config=loha, model_kwargs=kwargs, seed=List([1, 2]), callbacks=[object()]
    )
    before = (copy.deepcopy(loha), copy.deepcopy(kwargs), encode(configs))

    first, second = RFGridSearch([configs]).runs()
    first.model.model_kwargs["extra"]["a"].append(2)

    assert (loha, kwargs, encode(configs)) == before
    assert first.model.peft_config is not loha
    assert first.model.peft_config is not second.model.peft_config
    assert first.model.callbacks[0] is configs.callbacks[0]
    assert second.model.model_kwargs["extra"]["a"] == [1]


def test_no_choices_give_one_run() -> None:
    search = RFGridSearch(RFModelConfig("tiny"))

    assert len(search.runs()) == 1
    assert search.runs()[0].model.training_args == RFSFTConfig()
    assert search.describe() == "1 run"


# ------------------------------------------------------------------------------------ trainer types


def test_the_trainer_type_must_fit_the_training_arguments() -> None:
    mixed = [
        RFModelConfig("tiny", training_args=RFSFTConfig()),
        RFModelConfig("tiny", training_args=RFDPOConfig()),
    ]

    assert message(lambda: RFGridSearch(mixed[1], "SFT")) == (
        "trainer_type='SFT' takes RFSFTConfig, got training_args=RFDPOConfig(...); "
        "use trainer_type='DPO', or RFSFTConfig(...)"
    )
    assert "trainer_type='KTO' takes RFKTOConfig" in message(lambda: RFGridSearch(mixed, "KTO"))
    assert [run.trainer_type for run in RFGridSearch(mixed[1], "dpo").runs()] == ["DPO"]
    assert [run.trainer_type for run in RFGridSearch(mixed, None).runs()] == ["SFT", "DPO"]


def test_a_list_of_training_arguments_is_checked_before_anything_runs() -> None:
    args = List([RFSFTConfig(), RFDPOConfig()])

    assert "takes RFSFTConfig, got training_args=RFDPOConfig" in message(
        lambda: RFRandomSearch(RFModelConfig("tiny", training_args=args))
    )


# ------------------------------------------------------------------------------------------- random


def space() -> RFModelConfig:
    return RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(r=List([4, 8, 16]), lora_alpha=Range(8, 64)),
        training_args=RFSFTConfig(
            learning_rate=Range(1e-5, 1e-3, log=True),
            warmup_steps=Range(0, 100, step=20),
            weight_decay=Range(0.0, 0.2),
        ),
    )


@pytest.mark.parametrize("kind", ["SFT", "DPO", "GRPO"])
def test_random_search_draws_distinct_configs_for_every_trainer(kind: str) -> None:
    args = {"SFT": RFSFTConfig, "DPO": RFDPOConfig, "GRPO": RFGRPOConfig}[kind]
    configs = RFModelConfig(
        "tiny",
        training_args=args(learning_rate=Range(1e-6, 1e-4, log=True)),
        reward_funcs=[short_answers] if kind == "GRPO" else None,
    )

    runs = RFRandomSearch(configs, kind, num_runs=9).runs()

    assert len(set(rates(runs))) == 9
    assert {run.trainer_type for run in runs} == {kind}


def test_draws_stay_inside_their_ranges_and_keep_their_kind() -> None:
    runs = RFRandomSearch(space(), num_runs=60, seed=3).runs()

    args = [run.model.training_args for run in runs]
    assert all(1e-5 <= a.learning_rate <= 1e-3 for a in args)
    assert {a.warmup_steps for a in args} <= {0, 20, 40, 60, 80, 100}
    assert all(0.0 <= a.weight_decay <= 0.2 for a in args)
    assert {run.model.peft_config.r for run in runs} == {4, 8, 16}
    assert all(type(run.model.peft_config.lora_alpha) is int for run in runs)
    below = sum(a.learning_rate < 1e-4 for a in args)
    assert 15 <= below <= 45  # half of them on a log axis, a tenth on a plain one


def test_whole_numbers_on_a_log_axis_reach_both_ends() -> None:
    configs = RFModelConfig("tiny", seed=Range(1, 8, log=True))

    runs = RFRandomSearch(configs, num_runs=8).runs()

    assert sorted(run.model.seed for run in runs) == list(range(1, 9))


def test_the_same_seed_draws_the_same_and_no_other_stream_moves() -> None:
    random.seed(5)
    state = random.getstate()

    first, second = (RFRandomSearch(space(), num_runs=5, seed=9).runs() for _ in range(2))
    other = RFRandomSearch(space(), num_runs=5, seed=10).runs()

    assert random.getstate() == state
    assert [encode(flatten(run)) for run in first] == [encode(flatten(run)) for run in second]
    assert rates(first) != rates(other)


def test_every_combination_of_a_countable_space_is_as_likely() -> None:
    configs = RFModelConfig(
        "tiny", peft_config=List([None, RFLoraConfig(r=List([4, 8, 16]))]), seed=List([1, 2])
    )

    seen = Counter(
        run.model.peft_config.r if run.model.peft_config else 0
        for seed in range(200)
        for run in RFRandomSearch(configs, num_runs=1, seed=seed).runs()
    )

    assert seen.keys() == {0, 4, 8, 16}
    assert all(25 <= count <= 75 for count in seen.values())


def test_all_of_a_space_can_be_drawn_and_more_is_refused_with_the_number() -> None:
    configs = RFModelConfig(
        "tiny", seed=Range(1, 6), training_args=RFSFTConfig(packing=List([True, False]))
    )

    assert len(RFRandomSearch(configs, num_runs=12).runs()) == 12
    assert message(RFRandomSearch(configs, num_runs=13).runs) == (
        "num_runs=13 asked, but the space holds only 12 distinct config(s); "
        "lower num_runs or add values: 2 training_args.packing x seed in [1, 6]"
    )
    assert "holds only 2 distinct" in message(
        RFRandomSearch(RFModelConfig("tiny", seed=Range(1, 2, log=True)), num_runs=3).runs
    )


def test_a_space_too_large_to_list_is_drawn_from_too() -> None:
    configs = RFModelConfig(
        "tiny", seed=Range(0, 10**6), training_args=RFSFTConfig(data_seed=Range(0, 10**6))
    )

    runs = RFRandomSearch(configs, num_runs=50).runs()

    assert len({(run.model.seed, run.model.training_args.data_seed) for run in runs}) == 50


@pytest.mark.parametrize(("name", "value"), [("num_runs", 0), ("num_runs", 2.0), ("seed", None)])
def test_random_search_refuses_counts_that_are_none(name: str, value: object) -> None:
    assert f"RFRandomSearch: {name} must be a whole number" in message(
        lambda: RFRandomSearch(space(), **{name: value})  # type: ignore[arg-type]
    )


def test_random_search_says_what_it_draws_from() -> None:
    assert RFRandomSearch(space(), num_runs=5).describe() == (
        "5 runs drawn with seed 42: 3 peft_config.r x peft_config.lora_alpha in [8, 64] x "
        "training_args.learning_rate in [1e-05, 0.001] x 6 training_args.warmup_steps x "
        "training_args.weight_decay in [0.0, 0.2]"
    )


# ------------------------------------------------------------------------------------ config groups


def test_run_fit_takes_a_search_a_config_or_nested_lists_of_them() -> None:
    one = RFModelConfig("tiny", seed=List([1, 2]))
    two = RFModelConfig("other", training_args=RFDPOConfig())

    assert len(as_runs(one)) == 2
    assert [r.model.model_name for r in as_runs([one, (two,)])] == ["tiny", "tiny", "other"]
    assert [r.trainer_type for r in as_runs(List([one, List([two])]))] == ["SFT", "SFT", "DPO"]
    assert len(as_runs(RFGridSearch([one, one]))) == 2
    assert isinstance(as_search(one), Search)
    search = RFRandomSearch(one, num_runs=2)
    assert as_search(search, "sft") is search
    assert "contradicts the search's 'SFT'" in message(lambda: as_runs(search, "DPO"))


@pytest.mark.parametrize("group", [None, {"model_name": "tiny"}, [RFSFTConfig()], "tiny"])
def test_a_group_of_anything_else_is_refused(group: object) -> None:
    assert "configs must be RFModelConfig or a list of them, got" in message(lambda: as_runs(group))


def test_an_empty_group_is_refused() -> None:
    assert "must hold at least one value" in message(lambda: as_runs([]))


def test_the_count_is_the_product_for_any_tree() -> None:
    lists = [List(range(1, n + 1)) for n in (2, 3, 1)]
    configs = RFModelConfig(
        "tiny",
        tokenizer_kwargs={"a": lists[0], "b": [lists[1], {"c": lists[2]}]},
        model_kwargs={"d": List([1, {"e": List(["x", "y"])}])},
    )

    runs = RFGridSearch(configs).runs()

    assert len(runs) == math.prod([2, 3, 1, 3])
    assert runs[-1].model.model_kwargs == {"d": {"e": "y"}}


# -------------------------------------------------------------------------------- linked and where


def batches(rate: object, sizes: object = (8, 32), **given: object) -> RFModelConfig:
    return RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(r=List([4, 8]), lora_alpha=Linked(lambda c: 2 * c["r"])),
        training_args=RFSFTConfig(
            learning_rate=rate,
            per_device_train_batch_size=List(sizes),  # type: ignore[arg-type]
            **given,
        ),
    )


def by_root(c: object) -> float:
    return 1e-4 * math.sqrt(c["per_device_train_batch_size"])  # type: ignore[index]


def test_linked_values_follow_their_config_and_only_values_are_stored() -> None:
    runs = RFGridSearch(batches(Linked(by_root))).runs()

    seen = [
        (r.model.peft_config.r, r.model.peft_config.lora_alpha, r.model.training_args.learning_rate)
        for r in runs
    ]
    small, large = 1e-4 * math.sqrt(8), 1e-4 * math.sqrt(32)
    assert seen == [(4, 8, small), (4, 8, large), (8, 16, small), (8, 16, large)]
    assert encode(flatten(runs[0]))["training_args.learning_rate"] == small
    drawn = RFRandomSearch(batches(Linked(by_root)), num_runs=4, seed=1).runs()
    assert sorted(rates(drawn)) == [small, small, large, large]


def test_linked_may_follow_linked_and_defaults_and_lists_hold_them() -> None:
    config = RFModelConfig(
        "tiny",
        training_args=RFSFTConfig(
            learning_rate=List([1e-3, Linked(lambda c: c["weight_decay"] / 10)]),
            weight_decay=Linked(lambda c: 0.01 * c["training_args.gradient_accumulation_steps"]),
        ),
    )

    runs = RFGridSearch(config).runs()

    assert rates(runs) == [1e-3]  # 0.01 / 10 is the other value of the list


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda c: c["learning_rat"], "Linked training_args.weight_decay: a config has no field"),
        (lambda c: 1 / 0, "Linked training_args.weight_decay failed with ZeroDivisionError"),
        (lambda c: "much", "RFSFTConfig: weight_decay must be a number, got 'much'"),
        (lambda c: -1.0, "RFSFTConfig: weight_decay must be >= 0, got -1.0"),
        (lambda c: c["weight_decay"], "ask for each other"),
        (lambda c: c.learning_rate, "write c['learning_rate'], not c.learning_rate"),
    ],
)
def test_a_linked_value_that_cannot_be_had_is_refused_in_one_line(
    function: Callable[..., object], words: str
) -> None:
    config = RFModelConfig("tiny", training_args=RFSFTConfig(weight_decay=Linked(function)))

    assert words in message(RFGridSearch(config).runs)


def test_linked_takes_a_function_and_stays_a_choice_until_a_search() -> None:
    assert "Linked takes a function" in message(lambda: Linked(3))  # type: ignore[arg-type]
    config = RFModelConfig("tiny", training_args=RFSFTConfig(weight_decay=Linked(lambda c: 0.1)))
    assert "still has choices" in message(config.build)


def test_where_leaves_combinations_out_of_grid_and_draws() -> None:
    config = RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(r=List([4, 8, 16])),
        training_args=RFSFTConfig(learning_rate=List([1e-3, 1e-4])),
    )

    def small(c: object) -> bool:
        return c["r"] * c["learning_rate"] < 0.008  # type: ignore[index]

    grid = RFGridSearch(config, where=small)
    runs = grid.runs()

    seen = [(r.model.peft_config.r, r.model.training_args.learning_rate) for r in runs]
    assert seen == [(4, 1e-3), (4, 1e-4), (8, 1e-4), (16, 1e-4)]
    assert grid.describe().endswith("; 2 left out by where")
    drawn = RFRandomSearch(config, num_runs=4, where=small).runs()
    assert {encode(flatten(r))["peft_config.r"] for r in drawn} == {4, 8, 16}
    five = RFRandomSearch(config, num_runs=5, where=small)
    assert "holds only 4 distinct config(s) that where allows" in message(five.runs)


def test_where_that_leaves_nothing_or_fails_is_refused() -> None:
    config = RFModelConfig("tiny", training_args=RFSFTConfig(learning_rate=List([1e-3, 1e-4])))

    def refused(where: object) -> str:
        return message(lambda: RFGridSearch(config, where=where).runs())  # type: ignore[arg-type]

    assert "where leaves none of 2 combinations" in refused(lambda c: False)
    assert "where failed with ZeroDivisionError" in refused(lambda c: 1 / 0)
    assert "where: a config has no field 'lrate'" in refused(lambda c: c["lrate"])
    assert "where must be a function of the config, got 3" in refused(3)


@pytest.mark.parametrize(
    ("rate", "sizes", "factor"),
    [
        (1e-3, [4, 8], ""),
        (1e-3, [4, 16], ""),
        (1e-3, [2, 32], "4"),
        (List([1e-3, 1e-4]), [4, 64], "2.5"),
        (List([1e-3, 4e-3]), [4, 64], ""),
        (Linked(by_root), [1, 256], ""),
    ],
)
def test_batch_sizes_compared_far_off_the_rule_of_thumb_are_told(
    rate: object, sizes: list[int], factor: str
) -> None:
    text = batch_note(RFGridSearch(batches(rate, sizes)).runs())

    assert bool(text) == bool(factor)
    if factor:
        assert f"batch sizes {sizes[0]} and {sizes[1]}" in text and f"factor of {factor}" in text


def test_batch_sizes_are_compared_among_runs_of_one_trainer() -> None:
    sft = RFGridSearch(batches(1e-3, [2])).runs()
    dpo = RFModelConfig("tiny", training_args=RFDPOConfig(per_device_train_batch_size=64))

    assert batch_note([*sft, dpo.build()]) == ""
    assert "batch sizes 2 and 32" in batch_note(
        [dpo.build(), *RFGridSearch(batches(1e-3, [2, 32])).runs()]
    )


def test_a_search_says_where_an_argument_belongs_that_it_does_not_have() -> None:
    model = RFModelConfig("tiny")
    searches: list[Any] = [RFGridSearch, RFRandomSearch, RFOptuna]

    for search in searches:
        belongs = f"{search.__name__} has no argument 'max_tokens_per_batch'; write training_args="
        assert message(lambda s=search: s(model, max_tokens_per_batch=3)).startswith(belongs)
        assert "did you mean 'trainer_type'" in message(
            lambda s=search: s(model, trainer_typ="SFT")
        )
        assert "write RFModelConfig(..., ref_model_name='x')" in message(
            lambda s=search: s(model, ref_model_name="x")
        )
        assert list(inspect.signature(search).parameters)[:2] == ["configs", "trainer_type"]


# ----------------------------------------------------------------------------------------- points


def test_coordinates_say_what_was_chosen_also_in_nested_choices() -> None:
    space = List(
        [
            RFModelConfig("tiny", peft_config=List([None, RFLoraConfig(r=List([4, 8]))])),
            batches(Range(1e-4, 1e-2, log=True), weight_decay=Linked(lambda c: 0.1)),
        ]
    )
    draw = random.Random(3)
    told: dict[str, float] = {}

    def choose(path: str, node: List | Range) -> float:
        if isinstance(node, List):
            told[path] = draw.randrange(len(node.values))
        else:
            told[path] = draw.uniform(node.start, node.end)
        return told[path]

    for _ in range(40):
        told.clear()
        model = chosen(space, choose)

        assert not any(isinstance(node, (List, Range)) for _, node in walk(model, ""))
        assert coordinates(space, model) == told
    assert coordinates(space, RFModelConfig("other")) is None
