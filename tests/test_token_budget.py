"""Micro-batches by tokens: the same steps, computed in parts that fit a budget."""

import pytest
import tiny
import torch
from oracle import assert_same, plain, sliced

from rapidfire_jupyter import (
    RFDPOConfig,
    RFGridSearch,
    RFGRPOConfig,
    RFKTOConfig,
    RFLoraConfig,
    RFModelConfig,
    RFRewardConfig,
    RFSFTConfig,
)
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.training.estimates import UNKNOWN, Largest, scaled
from rapidfire_jupyter.training.relief import fewer_tokens
from rapidfire_jupyter.training.token_budget import parts_of, split

seen = []  # shapes of the batches that models were given in training


def watched(config):
    """The tiny model; it tells which batches it was given, and may hold only so many tokens."""
    kwargs = dict(config["model_kwargs"])
    most = kwargs.pop("most", 10**9)
    scores = config["model_type"] == "sequence_classification"
    model = tiny.model(**kwargs, scores=scores)

    def look(module, inputs, output):
        if torch.is_grad_enabled():
            seen.append(tuple(inputs[0].shape))
            if inputs[0].numel() > most:
                raise torch.OutOfMemoryError("CUDA out of memory.")

    model.model.embed_tokens.register_forward_hook(look)
    return model, tiny.tokenizer()


def config(tokens=None, rows=8, times=1, model=None, peft=None, kind=RFSFTConfig, **given):
    args = {
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "num_train_epochs": 2,
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": times,
        **({} if tokens is None else {"max_tokens_per_batch": tokens}),
        **given,
    }
    lora = {"r": 4, "target_modules": ["q_proj", "v_proj"], **(peft or {})}
    return RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(**lora),
        training_args=kind(**args),
        model_kwargs=model or {},
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


@pytest.fixture(autouse=True)
def nothing_seen():
    seen.clear()


def test_rows_of_like_length_go_together_within_the_budget():
    lengths = [3, 50, 4, 3, 20, 3, 60]

    parts = parts_of(lengths, 24)

    assert parts == [[6], [1], [4], [0, 2, 3, 5]]  # 60 and 50 are alone: longer than the budget
    assert parts_of(lengths, 110) == [[6], [1, 4], [0, 2, 3, 5]]
    assert parts_of([5, 3], 16, multiple=8) == [[0, 1]] and parts_of([5, 3], 15, 8) == [[0], [1]]
    for tokens in range(1, 200, 7):
        made = parts_of(lengths, tokens)
        assert sorted(row for part in made for row in part) == list(range(7))
        for part in made:
            width = max(lengths[row] for row in part)
            assert len(part) == 1 or len(part) * width <= tokens


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

    parts = split({**batch, "margin": torch.arange(3)}, 13, pairs=True)

    assert [p["margin"].tolist() for p in parts] == [[1], [0, 2]]
    assert [p["input_ids"][:, 0].tolist() for p in parts] == [[2, 5], [1, 3, 4, 6]]
    assert [tuple(p["input_ids"].shape) for p in parts] == [(2, 7), (4, 3)]
    assert len(split({**batch, "margin": torch.arange(3)}, 11, pairs=True)) == 3


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
    timed = {"time", "wall_time"}
    for split_up, whole in zip(found[64], found[None], strict=True):
        assert split_up.keys() == whole.keys()
        for key in split_up.keys() - timed:
            assert split_up[key] == pytest.approx(whole[key], rel=1e-4, abs=1e-5), key
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
    assert "use a smaller min_tokens_per_batch, gradient_checkpointing" in least.error
    assert "min_tokens_per_batch" not in alone.error


def test_a_least_budget_without_a_most_or_above_it_is_refused_in_the_cell():
    with pytest.raises(ConfigError, match="which memory may lower to it, got 64 and None; give"):
        RFGridSearch(config(min_tokens_per_batch=64), "SFT").runs()
    with pytest.raises(ConfigError, match="got 128 and 64; swap them"):
        RFGridSearch(config(64, min_tokens_per_batch=128), "SFT").runs()
    with pytest.raises(ConfigError, match="min_tokens_per_batch must be >= 1, got 0"):
        RFRewardConfig(min_tokens_per_batch=0)


def test_what_leaves_no_padding_and_other_trainers_are_refused_in_the_cell():
    with pytest.raises(ConfigError, match="packing=True, which leaves no padding"):
        RFGridSearch(config(64, packing=True), "SFT").runs()
    with pytest.raises(ConfigError, match="padding_free=True, which leaves no padding"):
        RFGridSearch(config(64, padding_free=True), "SFT").runs()
    with pytest.raises(ConfigError, match="max_tokens_per_batch must be >= 1, got 0"):
        RFSFTConfig(max_tokens_per_batch=0)
    there = "RFSFTConfig, RFDPOConfig, RFRewardConfig: KTO's loss compares each row"
    for kind in (RFKTOConfig, RFGRPOConfig):
        with pytest.raises(ConfigError, match=there):
            kind(max_tokens_per_batch=64)


@pytest.mark.parametrize("loss, why", [("sft", "is a mean over tokens"), ("aot", "sorts a batch")])
def test_losses_that_are_no_mean_over_pairs_are_refused_in_the_cell(loss, why):
    with pytest.raises(ConfigError, match=f"got loss_type='{loss}', which {why}"):
        RFGridSearch(config(64, kind=RFDPOConfig, loss_type=["sigmoid", loss]), "DPO").runs()
    RFGridSearch(config(kind=RFDPOConfig, loss_type=loss), "DPO").runs()
