"""What is measured beside logged rows: losses of single eval rows, tokens, waiting, the device."""

import math
from types import SimpleNamespace

import pytest
import tiny
import torch

from rapidfire_jupyter import List, RFGridSearch, RFLoraConfig, RFModelConfig, RFSFTConfig
from rapidfire_jupyter.training.gauge import Gauge, Reading, tokens

EVAL = tiny.sft_rows(30)[20:]


def grid(rates=(1e-2, 1e-4), **given):
    args = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 3, **given}
    args |= {"bf16": False}
    config = RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj"]),
        training_args=RFSFTConfig(
            learning_rate=List(list(rates)), logging_steps=1, num_train_epochs=1, **args
        ),
    )
    return RFGridSearch(config, "SFT")


def run_fit(exp, search, **given):
    exp.run_fit(
        search, tiny.create_model, tiny.sft_rows(16), EVAL, num_chunks=2, eval_budget=1.0, **given
    )
    exp.wait(300)
    assert {run.status for run in exp.runs} == {"completed"}, exp.run(1).trace
    return exp


def losses(exp):
    """By run and step, as the log has them."""
    return {(e.run, e.data["step"]): e.data["losses"] for e in exp.events if e.kind == "row_losses"}


def test_each_eval_row_has_the_loss_that_the_model_gives_it_alone(experiment):
    exp = run_fit(experiment(), grid())

    found = losses(exp)
    assert sorted(found) == [(1, 2), (1, 4), (2, 2), (2, 4)]
    model, tokenizer = exp.run(1).load_model()
    for row, loss in zip(EVAL, found[1, 4], strict=True):
        prompt = tokenizer(row["prompt"])["input_ids"]
        whole = tokenizer(row["prompt"] + row["completion"])["input_ids"] + [2]
        labels = [-100] * len(prompt) + whole[len(prompt) :]
        with torch.no_grad():
            by_hand = model.eval()(torch.tensor([whole]), labels=torch.tensor([labels])).loss
        assert loss == pytest.approx(float(by_hand), rel=1e-5)


def test_runs_are_compared_row_by_row(experiment):
    exp = run_fit(experiment(), grid())

    found = exp.compare(1, 2).result
    assert found.pairs == len(EVAL)
    pairs = [b - a for a, b in zip(losses(exp)[1, 4], losses(exp)[2, 4], strict=True)]
    mean = sum(pairs) / len(pairs)
    error = math.sqrt(sum((p - mean) ** 2 for p in pairs) / (len(pairs) - 1) / len(pairs))
    assert found.high - found.low == pytest.approx(2 * 1.96 * error)


@pytest.mark.filterwarnings("ignore:.*label_smoothing_factor")
@pytest.mark.parametrize(
    "given",
    [{"packing": True}, {"label_smoothing_factor": 0.1}, {"loss_type": "dft"}],
    ids=["packed", "smoothed", "another loss"],
)
def test_where_a_row_has_no_loss_of_its_own_none_is_told(experiment, given):
    exp = run_fit(experiment(), grid(**given))

    assert not losses(exp)
    assert any("eval_loss" in row for row in exp.run(1).rows)


def test_several_eval_sets_have_metrics_and_no_losses_of_rows(experiment):
    exp = experiment()
    exp.run_fit(
        grid(),
        tiny.create_model,
        tiny.sft_rows(16),
        {"a": EVAL[:5], "b": EVAL[5:]},
        num_chunks=2,
        block=True,
    )

    assert not losses(exp)
    assert sum("eval_a_loss" in row for row in exp.run(1).rows) == 2


def test_slices_tell_the_tokens_that_trl_counts_and_the_wait_for_batches(experiment):
    exp = run_fit(experiment(), grid())

    ended = [e for e in exp.events if e.kind == "slice_ended" and e.run == 1]
    counted = [row["num_tokens"] for row in exp.run(1).rows if "num_tokens" in row][-1]
    assert sum(e.data.get("tokens", 0) for e in ended) == counted
    for event in ended:
        assert 0 <= event.data["fetch_seconds"] < event.data["seconds"]
        assert "utilisation" not in event.data  # a processor has none


def test_a_slice_that_is_interrupted_counts_all_its_tokens(experiment):
    exp, seen = experiment(), []

    def boost(event):
        if event.kind == "logged" and event.data["source"] == "trainer" and len(seen) < 3:
            seen.append(exp.boost(1, 1.0 + len(seen)))

    exp.run_fit(grid(rates=(1e-2,)), tiny.create_model, tiny.sft_rows(16), num_chunks=1)
    exp._opened.log.subscribe(boost)
    exp.wait(300)

    [ended] = [e for e in exp.events if e.kind == "slice_ended"]
    counted = [row["num_tokens"] for row in exp.run(1).rows if "num_tokens" in row][-1]
    assert ended.data["tokens"] == counted


def test_tokens_are_counted_without_padding_and_by_the_trainer_where_a_batch_has_none():
    batch = {"input_ids": torch.ones(2, 4), "attention_mask": torch.tensor([[1, 1, 1, 0]] * 2)}
    pairs = {"chosen_input_ids": torch.ones(1, 3), "rejected_input_ids": torch.ones(1, 2)}
    assert [int(tokens(one)) for one in (batch, pairs, [{"prompt": "how"}], {})] == [6, 5, 0, 0]
    state = SimpleNamespace(num_input_tokens_seen=7)
    trainer = SimpleNamespace(
        state=state,
        args=SimpleNamespace(device=torch.device("cpu")),
        get_batch_samples=lambda batches: (batches, None),
    )

    gauge = Gauge(trainer)
    trainer.get_batch_samples([[{"prompt": "how"}]])
    state.num_input_tokens_seen = 19

    assert gauge.read().tokens == 12
    assert gauge.read() == Reading()


def test_the_devices_use_is_a_mean_of_samples_and_a_driver_that_does_not_tell_is_left_alone(
    monkeypatch,
):
    told = iter([50, 100])
    trainer = SimpleNamespace(
        state=SimpleNamespace(num_input_tokens_seen=0),
        args=SimpleNamespace(device=torch.device("cuda", 0)),
        get_batch_samples=None,
    )
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: next(told))
    monkeypatch.setattr("rapidfire_jupyter.training.gauge.BETWEEN_SAMPLES", 0.0)
    gauge = Gauge(trainer)

    for _ in range(4):  # the last two find a driver that raises
        gauge.sample()

    assert gauge.read().facts() == {"fetch_seconds": 0.0, "utilisation": 0.75}
