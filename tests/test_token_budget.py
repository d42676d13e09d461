"""Micro-batches by tokens: the same steps, computed in parts that fit a budget."""

import pytest
import tiny
import torch
from oracle import assert_same, plain, sliced

from rapidfire_jupyter import (
    List,
    RFDistillationConfig,
    RFDPOConfig,
    RFGridSearch,
    RFGRPOConfig,
    RFKTOConfig,
    RFLoraConfig,
    RFModelConfig,
    RFRewardConfig,
    RFRLOOConfig,
    RFSFTConfig,
)
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.training.estimates import UNKNOWN, Largest, scaled
from rapidfire_jupyter.training.relief import fewer_tokens
from rapidfire_jupyter.training.token_budget import KINDS, parts_of, split

seen = []  # shapes of the batches that models were given in training


def watched(config):
    """The tiny model; it tells which batches it was given, and may hold only so many tokens."""
    kwargs = dict(config["model_kwargs"])
    most, ends = kwargs.pop("most", 10**9), kwargs.pop("ends", None)
    scores = config["model_type"] == "sequence_classification"
    model = tiny.model(**kwargs, scores=scores)

    def look(module, inputs, output):
        if torch.is_grad_enabled():
            seen.append(tuple(inputs[0].shape))
            if inputs[0].numel() > most:
                raise torch.OutOfMemoryError("CUDA out of memory.")

    model.model.embed_tokens.register_forward_hook(look)
    if ends is not None:  # every so many tokens end an answer
        model.generation_config.eos_token_id = list(range(2, 320, ends))
    return model, tiny.tokenizer()


SAMPLED = {"num_generations": 4, "max_completion_length": 40, "beta": 0.1}


def config(tokens=None, rows=8, times=1, model=None, peft=None, kind=RFSFTConfig, **given):
    args = {
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "num_train_epochs": 2,
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": times,
        **(SAMPLED if kind in (RFGRPOConfig, RFRLOOConfig) else {}),
        **({} if tokens is None else {"max_tokens_per_batch": tokens}),
        **given,
    }
    lora = {"r": 4, "target_modules": ["q_proj", "v_proj"], **(peft or {})}
    return RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(**lora),
        training_args=kind(**args),
        model_kwargs=model or {},
        reward_funcs=[tiny.reward_length] if "num_generations" in args else None,
    )


def rows(count=20):
    """Rows of very different lengths."""
    return [
        {"prompt": f"{n} ", "completion": " " + tiny.sentence(n, 40 if n % 7 == 0 else 3 + n % 4)}
        for n in range(count)
    ]


def pairs(count=20):
    """Pairs of very different lengths; of some only the rejected answer is long."""
    return [
        {
            "prompt": f"{n} ",
            "chosen": " " + tiny.sentence(n, 40 if n % 7 == 0 else 3 + n % 4),
            "rejected": " " + tiny.sentence(n + 1, 40 if n % 5 == 0 else 2 + n % 3),
        }
        for n in range(count)
    ]


def judged(count=20):
    """Answers of very different lengths, good ones and bad ones."""
    return [{**row, "label": n % 3 > 0} for n, row in enumerate(rows(count))]


def prompts(count=8):
    return [{"prompt": tiny.sentence(n, 3 + n % 3 * 5)} for n in range(count)]


@pytest.fixture(autouse=True)
def nothing_seen():
    seen.clear()


def test_rows_of_like_length_go_together_within_the_budget():
    lengths = [3, 50, 4, 3, 20, 3, 60]

    alone = [[length] for length in lengths]
    parts = parts_of(alone, 24)

    assert parts == [[6], [1], [4], [0, 2, 3, 5]]  # 60 and 50 are alone: longer than the budget
    assert parts_of(alone, 110) == [[6], [1, 4], [0, 2, 3, 5]]
    assert parts_of([[5], [3]], 16, multiple=8) == [[0, 1]]
    assert parts_of([[5], [3]], 15, multiple=8) == [[0], [1]]
    for tokens in range(1, 200, 7):
        made = parts_of(alone, tokens)
        assert sorted(row for part in made for row in part) == list(range(7))
        for part in made:
            width = max(lengths[row] for row in part)
            assert len(part) == 1 or len(part) * width <= tokens


def test_a_prompt_and_its_completion_are_padded_each_for_itself():
    lengths = [[9, 1], [1, 9], [9, 2], [2, 1]]

    assert parts_of(lengths, 22) == [[0, 2], [1, 3]]  # 2 x (9 + 2) each
    assert parts_of(lengths, 53) == [[0, 2], [1, 3]]  # 3 x (9 + 9) would be too many
    assert parts_of(lengths, 54) == [[0, 1, 2], [3]]


@pytest.mark.parametrize("left", [False, True])
def test_a_part_has_all_of_its_rows_and_no_column_that_they_all_pad(left):
    lengths = [2, 7, 3]
    mask = torch.tensor([[1] * n + [0] * (8 - n) for n in lengths])
    ids = mask * torch.arange(1, 9)
    if left:
        mask, ids = mask.flip(1), ids.flip(1)

    parts = split({"input_ids": ids, "attention_mask": mask, "weight": torch.arange(3)}, 8)

    assert [tuple(p["input_ids"].shape) for p in parts] == [(1, 7), (2, 3)]
    assert [p["weight"].tolist() for p in parts] == [[1], [0, 2]]
    for part in parts:
        for row, number in zip(part["input_ids"], part["weight"].tolist(), strict=True):
            assert row[row > 0].tolist() == ids[number][ids[number] > 0].tolist()
    assert split({"input_ids": ids, "attention_mask": mask}, 99, 4)[0]["input_ids"].shape == (3, 8)


def test_pairs_stay_together_and_count_as_two_rows():
    lengths = [2, 7, 3, 3, 1, 2]  # pairs of 3, 7 and 3 at most
    mask = torch.tensor([[1] * n + [0] * (8 - n) for n in lengths])
    batch = {"input_ids": mask * torch.arange(1, 7)[:, None], "attention_mask": mask}

    parts = split({**batch, "margin": torch.arange(3)}, 13, kind=KINDS["DPOTrainer"])

    assert [p["margin"].tolist() for p in parts] == [[1], [0, 2]]
    assert [p["input_ids"][:, 0].tolist() for p in parts] == [[2, 5], [1, 3, 4, 6]]
    assert [tuple(p["input_ids"].shape) for p in parts] == [(2, 7), (4, 3)]
    assert len(split({**batch, "margin": torch.arange(3)}, 11, kind=KINDS["DPOTrainer"])) == 3


def test_what_was_sampled_is_cut_at_both_ends_and_its_numbers_stay():
    prompt = torch.tensor([[0, 0, 1], [1, 1, 1], [0, 0, 1]])
    completion = torch.tensor([[1, 0, 0], [1, 1, 1], [0, 0, 0]])  # the last one: masked, truncated
    batch = {
        "prompt_ids": prompt * 5,
        "prompt_mask": prompt,
        "completion_ids": completion * 7,
        "completion_mask": completion,
        "advantages": torch.arange(3),
        "num_items_in_batch": torch.tensor(4),
    }

    parts = split(batch, 8, kind=KINDS["GRPOTrainer"])

    assert [p["advantages"].tolist() for p in parts] == [[1], [0, 2]]
    # TRL takes one column for one number of each row, so there are two.
    for name in ("prompt_ids", "completion_ids"):
        assert [tuple(p[name].shape) for p in parts] == [(1, 3), (2, 2)]
    assert parts[1]["completion_ids"].tolist() == [[7, 0], [0, 0]]
    assert {int(p["num_items_in_batch"]) for p in parts} == {4}


def test_batches_that_are_not_padded_rows_are_refused():
    mask = torch.ones(2, 3, dtype=torch.long)

    with pytest.raises(ValueError, match="needs batches of padded rows"):
        split({"input_ids": mask}, 8)
    with pytest.raises(ValueError, match="cannot cut 'pixels'"):
        split({"attention_mask": mask, "pixels": torch.ones(5)}, 8)


def test_sliced_runs_in_parts_equal_their_plain_trl_scripts(experiment, tmp_path):
    exp = experiment()
    group = [
        config(64, model={"dropout": 0.1}, logging_steps=3),
        config(40, rows=3, times=3, peft={"lora_dropout": 0.1}, rdrop_alpha=0.5),
        config(96, bf16=True, pad_to_multiple_of=8),
    ]

    exp.run_fit(group, watched, rows(), rows(4), num_chunks=3, slice_steps=1, block=True)

    for run in exp.runs:
        assert run.status == "completed", run.trace
        assert run.exact
        assert_same(sliced(run), plain(run, tmp_path / str(run.id)), f"run {run.id}")


def test_steps_are_those_of_a_fixed_split_and_stay_within_the_budget(experiment):
    losses, shapes = {}, {}
    for tokens in (None, 64):
        seen.clear()
        exp = experiment(f"exp-{tokens}")
        exp.run_fit(config(tokens), watched, rows(), num_chunks=2, eval_rows=0, block=True)
        run = exp.run(1)
        assert run.status == "completed", run.trace
        losses[tokens] = [row["loss"] for row in run.rows if "loss" in row]
        accuracy = [row["mean_token_accuracy"] for row in run.rows if "loss" in row]
        losses[tokens] += accuracy
        shapes[tokens] = list(seen)

    assert len(losses[64]) == 2 * 6  # two epochs of three steps: 8 + 8 + 4 rows
    assert losses[64] == pytest.approx(losses[None], rel=1e-5)
    assert max(rows * width for rows, width in shapes[64] if rows > 1) <= 64
    padded = {tokens: sum(r * w for r, w in found) for tokens, found in shapes.items()}
    assert padded[64] < 0.6 * padded[None]
    in_training = {tokens: sum(r for r, _ in found) for tokens, found in shapes.items()}
    assert in_training[64] == in_training[None]


def assert_like(split_up, whole):
    """Rows of a log are those of unsplit batches, but for rounding and for what is a time."""
    for mine, theirs in zip(split_up, whole, strict=True):
        assert mine.keys() == theirs.keys()
        for key in mine:
            if any(name in key for name in ("time", "per_second")):
                continue
            assert mine[key] == pytest.approx(theirs[key], rel=1e-4, abs=1e-5), key


PAIRS = {
    "DPO": {"kind": RFDPOConfig},
    "ipo": {"kind": RFDPOConfig, "loss_type": ["ipo", "sigmoid"], "loss_weights": [0.5, 1.0]},
    "weighted": {"kind": RFDPOConfig, "use_weighting": True, "ld_alpha": 0.5},
    "Reward": {"kind": RFRewardConfig, "center_rewards_coefficient": 0.1},
}


@pytest.mark.parametrize("name", PAIRS)
def test_steps_of_pairs_are_those_of_unsplit_batches_in_loss_and_all_metrics(experiment, name):
    found, shapes = {}, {}
    for tokens in (None, 64):
        seen.clear()
        exp = experiment(f"exp-{tokens}")
        one = config(tokens, rows=4, times=2, bf16=False, **PAIRS[name])
        exp.run_fit(one, watched, pairs(), num_chunks=2, eval_rows=0, block=True)
        run = exp.run(1)
        assert run.status == "completed", run.trace
        found[tokens] = [row for row in run.rows if "loss" in row]
        shapes[tokens] = list(seen)

    assert len(found[64]) == 2 * 3  # two epochs of three steps: 8 + 8 + 4 pairs
    assert_like(found[64], found[None])
    assert max(rows * width for rows, width in shapes[64] if rows > 2) <= 64
    padded = {tokens: sum(r * w for r, w in found) for tokens, found in shapes.items()}
    assert padded[64] < 0.8 * padded[None]
    assert len({sum(r for r, _ in found) for found in shapes.values()}) == 1


def test_sliced_runs_of_pairs_in_parts_equal_their_plain_trl_scripts(experiment, tmp_path):
    for kind, given in ((RFDPOConfig, {"bf16": True}), (RFRewardConfig, {})):
        exp = experiment(kind.__name__)
        group = [
            config(64, kind=kind, model={"dropout": 0.1}, logging_steps=3),
            config(96, rows=3, times=2, kind=kind, peft={"lora_dropout": 0.1}, **given),
        ]

        exp.run_fit(group, watched, pairs(), pairs(4), num_chunks=3, slice_steps=1, block=True)

        for run in exp.runs:
            assert run.status == "completed", run.trace
            assert run.exact
            folder = tmp_path / f"{kind.__name__}-{run.id}"
            assert_same(sliced(run), plain(run, folder), f"{kind.__name__} {run.id}")


FURTHER = {
    "kto": (RFKTOConfig, {"learning_rate": 3e-2}),
    "apo": (RFKTOConfig, {"loss_type": "apo_zero_unpaired", "desirable_weight": 2.0}),
    "ahead": (RFKTOConfig, {"learning_rate": 3e-2, "precompute_ref_log_probs": True}),
    **{
        loss: (RFGRPOConfig, {"loss_type": loss})
        for loss in ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "luspo", "sapo", "vespo")
    },
    "sequence": (RFGRPOConfig, {"importance_sampling_level": "sequence", "num_iterations": 2}),
    "old": (RFGRPOConfig, {"steps_per_generation": 4, "mask_truncated_completions": True}),
    "RLOO": (RFRLOOConfig, {"num_iterations": 2}),
}


@pytest.mark.parametrize("name", FURTHER)
def test_steps_of_kto_and_of_what_was_sampled_are_those_of_unsplit_batches(experiment, name):
    (kind, given), found, shapes = FURTHER[name], {}, {}
    data = judged() if kind is RFKTOConfig else prompts()
    for tokens in (None, 96):
        seen.clear()
        exp = experiment(f"exp-{tokens}")
        one = config(tokens, 8, 2, {"ends": 12}, bf16=False, kind=kind, max_steps=3, **given)
        evaluation = judged(4) if kind is RFKTOConfig else None
        exp.run_fit(one, watched, data, evaluation, num_chunks=2, eval_budget=1.0, block=True)
        run = exp.run(1)
        assert run.status == "completed", run.trace
        found[tokens] = [row for row in run.rows if "loss" in row or "eval_loss" in row]
        shapes[tokens] = list(seen)

    assert sum("loss" in row for row in found[96]) == 3
    assert kind is not RFKTOConfig or any("eval_loss" in row for row in found[96])
    assert_like(found[96], found[None])
    assert name not in ("kto", "ahead") or max(row.get("kl", 0) for row in found[96]) > 0
    assert max(rows * width for rows, width in shapes[96] if rows > 1) <= 96
    padded = {tokens: sum(r * w for r, w in found) for tokens, found in shapes.items()}
    assert padded[96] < 0.7 * padded[None]
    assert len({sum(r for r, _ in found) for found in shapes.values()}) == 1


def test_a_loss_beside_what_one_part_lacks_is_that_of_the_batch(experiment):
    """Each part of KTO has answers of one kind only: the long ones are good, the short ones bad."""
    found, data = {}, [{**row, "label": len(row["completion"]) > 60} for row in rows(16)]
    for tokens in (None, 64):
        exp = experiment(f"exp-{tokens}")
        one = config(tokens, kind=RFKTOConfig, bf16=False)
        exp.run_fit(one, watched, data, eval_rows=0, block=True)
        found[tokens] = [row for row in exp.run(1).rows if "loss" in row]

    assert any("rewards/margins" in row for row in found[64])
    assert_like(found[64], found[None])


def test_sliced_runs_of_what_was_sampled_equal_their_plain_trl_scripts(experiment, tmp_path):
    ends = {"ends": 12}
    groups = {
        "GRPO": [
            config(96, 8, 1, {**ends, "dropout": 0.1}, kind=RFGRPOConfig, num_iterations=2),
            config(64, 4, 2, ends, {"lora_dropout": 0.1}, RFGRPOConfig, loss_type="bnpo"),
        ],
        "RLOO": [config(96, 8, 1, ends, kind=RFRLOOConfig, bf16=True, pad_to_multiple_of=8)],
        "KTO": [config(64, kind=RFKTOConfig, model={"dropout": 0.1}, disable_dropout=False)],
    }
    beside = experiment("SFT")
    beside.run_fit(config(64), watched, rows(), num_chunks=3, slice_steps=1)

    for name, group in groups.items():
        data = judged if name == "KTO" else prompts
        experiment(name).run_fit(group, watched, data(), data(4), num_chunks=3, slice_steps=1)

    for exp in (beside, *map(experiment, groups)):
        exp.wait()
        for run in exp.runs:
            assert run.status == "completed", run.trace
            assert run.exact
            assert_same(sliced(run), plain(run, tmp_path / f"{exp.name}-{run.id}"), exp.name)


def test_runs_of_unlike_budgets_sample_together(experiment, same_bits, tmp_path):
    exp = experiment()
    group = [config(tokens, kind=RFGRPOConfig, bf16=False) for tokens in (128, 256)]

    exp.run_fit(group, tiny.create_model, prompts(), num_chunks=2, eval_rows=0, block=True)

    assert exp._fit.executor.generations.taken > 0
    for run in exp.runs:
        assert run.exact
        assert_same(sliced(run), plain(run, tmp_path / str(run.id)), f"run {run.id}")


def test_where_memory_runs_out_the_budget_is_halved(experiment):
    exp = experiment()

    exp.run_fit(config(512, model={"most": 128}), watched, rows(), num_chunks=2, block=True)

    run = exp.run(1)
    assert run.status == "completed", run.trace
    budgets = [e.data["changes"] for e in exp.events if e.kind == "run_adjusted"]
    largest = max(rows * width for rows, width in seen)
    assert largest < 512
    halved = (largest // 2, largest // 4)
    assert budgets == [{"training_args.max_tokens_per_batch": n} for n in halved]
    assert run.config["training_args.per_device_train_batch_size"] == 8


def test_where_memory_runs_out_on_what_was_sampled_as_much_is_sampled_as_before(experiment):
    exp, one = experiment(), config(512, model={"most": 128, "ends": 12}, kind=RFGRPOConfig)

    exp.run_fit(one, watched, prompts(), num_chunks=2, block=True)

    run = exp.run(1)
    assert run.status == "completed", run.trace
    changes = [e.data["changes"] for e in exp.events if e.kind == "run_adjusted"]
    assert changes and all(list(one) == ["training_args.max_tokens_per_batch"] for one in changes)


def test_memory_lowers_a_budget_to_what_fits_and_never_below_the_least():
    def lowered(largest, tokens=512, least=None, kind=RFSFTConfig, trainer="SFT"):
        given = {} if least is None else {"min_tokens_per_batch": least}
        one = config(tokens, kind=kind, **given).build(trainer)
        found = fewer_tokens(one, largest)
        return found and found.changes["training_args.max_tokens_per_batch"]

    assert lowered(UNKNOWN) == 256
    assert lowered(Largest(4, 400)) == 200  # a budget of 400 to 512 changes nothing
    assert lowered(Largest(4, 400, room=0.8)) == 320
    assert lowered(Largest(4, 400, room=0.8), least=350) == 350
    assert lowered(Largest(4, 400), least=350) == 350
    assert lowered(Largest(4, 400), least=400) is None
    assert lowered(UNKNOWN, tokens=16) is None
    assert lowered(Largest(1, 400)) is None  # a row alone stays as long as it is
    pairs = {"kind": RFDPOConfig, "trainer": "DPO"}
    assert lowered(Largest(2, 400), **pairs) is None and lowered(Largest(4, 400), **pairs) == 200


def test_activations_follow_the_largest_micro_batch_and_not_a_budget_that_it_does_not_fill():
    largest = Largest(4, 400)

    assert scaled(1000, largest, (8, 5000), (8, 5000)) == (1000, largest)
    assert scaled(1000, largest, (8, 5000), (8, 200)) == (500, UNKNOWN)
    assert scaled(1000, largest, (8, 400), (8, 800)) == (2000, UNKNOWN)
    assert scaled(1000, UNKNOWN, (8, 400), (8, 200)) == (500, UNKNOWN)
    assert scaled(1000, largest, (8, None), (2, None)) == (250, UNKNOWN)
    assert scaled(1000, largest, (8, None), (8, 200)) == (1000, UNKNOWN)


def test_kto_is_given_a_budget_which_leaves_its_loss_as_it_is(experiment, tmp_path):
    losses = {}
    for most in (10**9, 160):
        exp = experiment(f"exp-{most}")
        one = config(kind=RFKTOConfig, model={"most": most}, bf16=False)
        exp.run_fit(one, watched, judged(), num_chunks=2, eval_rows=0, block=True)
        run = exp.run(1)
        assert run.status == "completed" and run.exact, run.trace
        losses[most] = [row["loss"] for row in run.rows if "loss" in row]

    changes = [e.data["changes"] for e in exp.events if e.kind == "run_adjusted"]
    assert changes and all(list(c) == ["training_args.max_tokens_per_batch"] for c in changes)
    assert losses[160] == pytest.approx(losses[10**9], rel=1e-5)
    assert_same(sliced(run), plain(run, tmp_path / "plain"))


def test_evaluation_is_whole_where_sampling_leaves_the_model_in_training(experiment):
    exp = experiment()
    one = config(300, kind=RFGRPOConfig, use_transformers_continuous_batching=True, max_steps=2)

    exp.run_fit(
        one, watched, prompts(), prompts()[:4], num_chunks=1, generate_rows=0, block=True
    )  # fmt: skip

    assert exp.run(1).status == "completed", exp.run(1).trace
    assert any("eval_reward" in row for row in exp.run(1).rows)


def test_a_generous_budget_becomes_what_fits_on_the_device_before_training(experiment, tmp_path):
    one = config(5000, model={"hidden": 64, "layers": 4})
    roomy = experiment("roomy")
    roomy.run_fit(one, watched, rows(), num_chunks=2, block=True)
    needed, largest = roomy.run(1).memory, max(r * w for r, w in seen)
    assert largest < 5000
    seen.clear()
    exp = experiment()

    exp.run_fit(
        one,
        watched,
        rows(),
        num_chunks=2,
        device_memory=needed.base + needed.own - needed.activations // 3,
        block=True,
    )

    run = exp.run(1)
    assert run.status == "completed", run.trace
    budget = run.config["training_args.max_tokens_per_batch"]
    changes = [e.data["changes"] for e in exp.events if e.kind == "run_adjusted"]
    assert changes == [{"training_args.max_tokens_per_batch": budget}]  # at once
    assert budget == pytest.approx(largest * 2 / 3, rel=0.02)
    assert run.exact
    assert_same(sliced(run), plain(run, tmp_path / "plain"))


def test_rows_that_do_not_fit_alone_and_the_least_budget_end_the_search_at_once(experiment):
    exp = experiment()
    group = [
        config(512, model={"most": 20}),  # one row has 40 tokens and more
        config(512, model={"most": 100}, min_tokens_per_batch=128),
    ]

    exp.run_fit(group, watched, rows(), num_chunks=2, block=True)

    alone, least = exp.run(1), exp.run(2)
    assert alone.status == least.status == "failed"
    assert alone.config["training_args.max_tokens_per_batch"] >= 40
    assert least.config["training_args.max_tokens_per_batch"] == 128
    assert "use a smaller min_tokens_per_batch, optim=" in least.error
    assert "min_tokens_per_batch" not in alone.error


def test_a_least_budget_without_a_most_or_above_it_is_refused_in_the_cell():
    with pytest.raises(ConfigError, match="which memory may lower to it, got 64 and None; give"):
        RFGridSearch(config(min_tokens_per_batch=64), "SFT").runs()
    either = config(List([None, 64]), min_tokens_per_batch=32)  # one with a budget, one without
    assert len(RFGridSearch(either, "SFT").runs()) == 2
    with pytest.raises(ConfigError, match="got 128 and 64; swap them"):
        RFGridSearch(config(64, min_tokens_per_batch=128), "SFT").runs()
    with pytest.raises(ConfigError, match="min_tokens_per_batch must be >= 1, got 0"):
        RFRewardConfig(min_tokens_per_batch=0)


def test_what_leaves_no_padding_and_other_trainers_are_refused_in_the_cell():
    with pytest.raises(ConfigError, match="packing=True, which leaves no padding"):
        RFGridSearch(config(64, packing=True), "SFT").runs()
    with pytest.raises(ConfigError, match="padding_free=True, which leaves no padding"):
        RFGridSearch(config(64, padding_free=True), "SFT").runs()
    with pytest.raises(ConfigError, match="got optim='lomo', which keeps none; drop one"):
        RFGridSearch(config(64, optim="lomo"), "SFT").runs()
    with pytest.raises(ConfigError, match="max_tokens_per_batch must be >= 1, got 0"):
        RFSFTConfig(max_tokens_per_batch=0)
    there = "RFKTOConfig, RFRewardConfig: of other trainers it is not known"
    with pytest.raises(ConfigError, match=there):
        RFDistillationConfig(max_tokens_per_batch=64)


@pytest.mark.parametrize(
    "loss, why", [("sft", "is a mean over tokens"), ("aot_unpaired", "sorts a batch")]
)
def test_losses_that_are_no_mean_over_pairs_are_refused_in_the_cell(loss, why):
    with pytest.raises(ConfigError, match=f"got loss_type='{loss}', which {why}"):
        RFGridSearch(config(64, kind=RFDPOConfig, loss_type=["sigmoid", loss]), "DPO").runs()
    RFGridSearch(config(kind=RFDPOConfig, loss_type=loss), "DPO").runs()


@pytest.mark.parametrize(
    "given, why",
    [
        ({"top_entropy_quantile": 0.2}, "top_entropy_quantile=0.2, which ranks the tokens"),
        ({"entropy_coef": 0.1}, "entropy_coef=0.1, which is on a mean over the tokens"),
        ({"use_adaptive_entropy": True}, "use_adaptive_entropy=True, which looks at the entropy"),
    ],
)
def test_what_looks_at_a_whole_micro_batch_is_refused_in_the_cell(given, why):
    with pytest.raises(ConfigError, match=why):
        RFGridSearch(config(64, kind=RFGRPOConfig, **given), "GRPO").runs()
    RFGridSearch(config(kind=RFGRPOConfig, **given), "GRPO").runs()
