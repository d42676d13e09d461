"""R-Drop: the loss by hand, exactness against its plain TRL script, warm clones, refusals."""

import math

import pytest
import tiny
import torch
from oracle import assert_same, plain, sliced
from test_exactness import lora, sft

from rapidfire_jupyter import List, RFLoraConfig, RFModelConfig, RFSFTConfig
from rapidfire_jupyter.changes import modify
from rapidfire_jupyter.errors import ConfigError


def trainer(folder, alpha, **given):
    """An SFT trainer with R-Drop over a model with dropout 0.1, and one batch of it."""
    from datasets import Dataset
    from trl import SFTConfig

    from rapidfire_jupyter.training.rdrop import RDropSFTTrainer

    args = SFTConfig(
        str(folder), report_to="none", use_cpu=True, per_device_train_batch_size=4, **given
    )
    made = RDropSFTTrainer(
        model=tiny.model(dropout=0.1),
        args=args,
        train_dataset=Dataset.from_list(tiny.sft_rows(8)),
        processing_class=tiny.tokenizer(),
        rdrop_alpha=alpha,
    )
    made.model.train()
    return made, next(iter(made.get_train_dataloader()))


def by_hand(model, batch, alpha, tokens):
    """The authors' formula with loops over rows and positions, in float64."""
    labels = batch["labels"]
    inputs = {k: v for k, v in batch.items() if k != "labels"}
    passes = [model(**inputs).logits.double() for _ in range(2)]
    total = torch.zeros((), dtype=torch.float64)
    for row in range(labels.size(0)):
        for at in range(1, labels.size(1)):
            if labels[row, at] == -100:
                continue
            p, q = (torch.softmax(logits[row, at - 1], 0) for logits in passes)
            nll = -(p[labels[row, at]].log() + q[labels[row, at]].log()) / 2
            kl = ((p * (p / q).log()).sum() + (q * (q / p).log()).sum()) / 2
            total = total + nll + alpha * kl
    return total / tokens


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "tokens"), [(0.5, None), (4.0, None), (1.0, 100)])
def test_loss_and_gradients_equal_a_hand_computation(tmp_path, alpha, tokens):
    made, batch = trainer(tmp_path, alpha)
    learned = int((batch["labels"][:, 1:] != -100).sum())
    torch.manual_seed(5)
    expected = by_hand(made.model, batch, alpha, tokens or learned)
    wanted = torch.autograd.grad(expected, list(made.model.parameters()))

    torch.manual_seed(5)
    loss = made.compute_loss(made.model, dict(batch), num_items_in_batch=tokens)
    got = torch.autograd.grad(loss, list(made.model.parameters()))

    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-6)
    assert made._metrics["train"]["rdrop_kl"][0] > 0


@pytest.mark.slow
def test_metrics_are_trls_of_the_first_pass_and_evaluation_is_one_plain_pass(tmp_path):
    from trl import SFTTrainer

    made, batch = trainer(tmp_path, 1.0)
    metrics = made._metrics["train"]
    torch.manual_seed(5)
    SFTTrainer.compute_loss(made, made.model, dict(batch))
    tokens = made._total_train_tokens

    torch.manual_seed(5)
    made.compute_loss(made.model, dict(batch))

    assert metrics["entropy"][1] == pytest.approx(metrics["entropy"][0], rel=1e-5)
    assert metrics["mean_token_accuracy"][1] == metrics["mean_token_accuracy"][0]
    assert made._total_train_tokens == 2 * tokens  # two calls: the rows of a step count once
    made.model.eval()
    assert torch.equal(
        made.compute_loss(made.model, dict(batch)),
        SFTTrainer.compute_loss(made, made.model, dict(batch)),
    )


@pytest.mark.slow
def test_sliced_runs_with_rdrop_equal_their_plain_trl_scripts(experiment, tmp_path):
    exp = experiment()
    dropping = lora(lora_dropout=0.1)

    exp.run_fit(
        [
            sft(dropping, rdrop_alpha=List([0, 1.0]), num_train_epochs=2),
            sft(dropping, rdrop_alpha=0.5, gradient_accumulation_steps=2, logging_steps=5),
            sft(dropping, rdrop_alpha=0.5, packing=True, max_length=32),
            sft(dropping, rdrop_alpha=0.5, bf16=True, gradient_checkpointing=True),
        ],
        tiny.create_model,
        tiny.sft_rows(30),
        tiny.sft_rows(40)[30:],
        num_chunks=3,
        block=True,
    )

    for run in exp.runs:
        assert run.status == "completed", run.trace
        assert run.exact, run.exact
        assert_same(sliced(run), plain(run, tmp_path / f"plain{run.id}"), f"run {run.id}")
    assert "rdrop_kl" in exp.run(2).history and "rdrop_kl" not in exp.run(1).history
    assert "rapidfire_jupyter" not in exp.run(2).script()


@pytest.mark.slow
def test_a_warm_clone_may_begin_rdrop_and_change_it(experiment):
    exp = experiment()
    exp.run_fit(
        sft(lora(lora_dropout=0.1), num_train_epochs=2),
        tiny.create_model,
        tiny.sft_rows(24),
        num_chunks=3,
        block=True,
    )
    longer = {"num_train_epochs": 3}

    exp.clone(1, {"rdrop_alpha": 1.0, **longer}, warm=True).wait()
    exp.clone(1, {"rdrop_alpha": 1.0, "lora_dropout": 0.2, **longer}, warm=True).wait()
    exp.wait()

    for run in exp.runs[1:]:
        assert run.status == "completed", run.trace
        assert run.history["rdrop_kl"].notna().any()
    with pytest.raises(ConfigError, match="set lora_dropout=0\\.1"):
        exp.clone(1, {"rdrop_alpha": 1.0, "lora_dropout": 0.0, **longer})


@pytest.mark.slow
def test_a_model_without_dropout_fails_its_run_with_the_reason(experiment):
    exp = experiment()
    config = RFModelConfig("tiny", training_args=RFSFTConfig(rdrop_alpha=1.0, max_steps=2))

    exp.run_fit(
        [config, config.copy(model_kwargs={"dropout": 0.1})],
        tiny.create_model,
        tiny.sft_rows(8),
        num_chunks=1,
        block=True,
    )

    assert [run.status for run in exp.runs] == ["failed", "completed"]
    assert "nothing in this model drops out; set lora_dropout=0.1" in exp.run(1).error


@pytest.mark.parametrize(
    ("args", "peft", "message"),
    [
        ({}, {}, "rdrop_alpha=1.0 compares two passes under dropout, got lora_dropout=0; set"),
        ({"loss_type": "dft"}, {"lora_dropout": 0.1}, "got loss_type='dft' too; drop one"),
        ({"label_smoothing_factor": 0.1}, {"lora_dropout": 0.1}, "got label_smoothing_factor too"),
    ],
)
def test_rdrop_that_cannot_work_is_refused_in_the_cell(args, peft, message):
    config = RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(r=4, **peft),
        training_args=RFSFTConfig(rdrop_alpha=1.0, **args),
    )

    with pytest.raises(ConfigError, match=message):
        config.build()


def test_rdrop_alpha_is_checked_and_is_no_argument_of_trls_config():
    with pytest.raises(ConfigError, match="rdrop_alpha must be >= 0, got -1"):
        RFSFTConfig(rdrop_alpha=-1)
    config = RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(lora_dropout=0.1),
        training_args=RFSFTConfig(learning_rate=1e-3),
    ).build()

    changed = modify(config, {"rdrop_alpha": "0.5"})

    assert changed.model.training_args.rdrop_alpha == 0.5
    assert config.model.training_args.rdrop_alpha == 0
    built = changed.model.training_args.build(output_dir="x", use_cpu=True, bf16=False)
    assert not hasattr(built, "rdrop_alpha")


def test_divergence_is_zero_for_equal_and_symmetric():
    from rapidfire_jupyter.training.rdrop import divergence

    first, second = (torch.log_softmax(torch.randn(3, 7), -1) for _ in range(2))

    assert divergence(first, first).tolist() == [0, 0, 0]
    assert torch.equal(divergence(first, second), divergence(second, first))
    half = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
    expected = 0.5 * (0.25 * math.log(2) - 0.25 * math.log(0.5 / 0.75))
    assert divergence(*half).item() == pytest.approx(expected, rel=1e-6)
