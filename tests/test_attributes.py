"""What trainers of any class keep in attributes: put back after a look, kept in checkpoints."""

import json
from collections import defaultdict, deque
from types import SimpleNamespace

import pytest
import scarce
import tiny
import torch
from oracle import assert_same, plain, sliced
from scarce import CountSteps
from test_ops import at
from transformers import Trainer, TrainingArguments
from trl import SFTTrainer

from rapidfire_jupyter import RFConfig, RFGridSearch, RFLoraConfig, RFModelConfig, RFSFTConfig
from rapidfire_jupyter.training import attributes


class Gathers(SFTTrainer):
    """Logs what it gathers in attributes of its own: numbers, a dict with a default, the last."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_so_far, self.of_length = 0.0, defaultdict(list)
        self.last = deque(maxlen=3)

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        if self.model.training:
            self.loss_so_far += float(loss.detach())
            self.of_length[str(len(self.last))].append(float(loss.detach()))
            self.last.append(float(loss.detach()))
        return loss

    def log(self, logs, *args, **kwargs):
        logs["so_far"], logs["lengths"] = self.loss_so_far, float(len(self.of_length["3"]))
        logs["last"] = sum(self.last)
        super().log(logs, *args, **kwargs)


class Averages(SFTTrainer):
    """Keeps a tensor and an object that its steps change, and a tensor that they only read."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.mean, self.seen, self.scale = torch.zeros(2), SimpleNamespace(), torch.ones(2)

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        self.mean += loss.detach() * self.scale
        self.seen = SimpleNamespace(loss=float(loss.detach()))
        return loss


def config(args=None, adapter=True, **given):
    training = {"learning_rate": 1e-2, "per_device_train_batch_size": 2, "logging_steps": 2}
    made = RFConfig(args, **training) if args else RFSFTConfig(**training)
    lora = RFLoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj"])
    return RFModelConfig("tiny", peft_config=lora if adapter else None, training_args=made, **given)


def test_what_was_changed_in_place_or_added_is_put_back():
    trainer = SimpleNamespace(
        steps=1, sums={"train": defaultdict(list)}, model=torch.nn.Linear(1, 1)
    )
    trainer.sums["train"]["loss"].append(torch.tensor(0.5))
    before, copies, model = dict(vars(trainer)), attributes.plain(trainer), trainer.model

    trainer.steps, trainer.more, trainer.model = 2, "new", None
    trainer.sums["train"]["loss"].append(1.0)
    attributes.put_back(trainer, before, copies)

    assert vars(trainer) == {
        "steps": 1,
        "sums": {"train": {"loss": [torch.tensor(0.5)]}},
        "model": model,
    }
    assert trainer.sums["train"]["other"] == []  # its default is still there


def test_what_moved_goes_through_json_into_the_containers_that_are_there():
    def made():
        return SimpleNamespace(
            rows=[],
            seen=0,
            kept="as it was",
            last=deque(maxlen=2),
            sums=defaultdict(list),
            share=torch.tensor(0.5),
        )

    first, other = made(), made()
    begun = attributes.plain(first)
    first.seen, first.weights, first.share = 3, torch.ones(2), torch.tensor(0.25)
    first.last.extend([1, 2, 3])
    first.sums["loss"].append(torch.tensor(0.25))

    found = attributes.moved(first, begun)
    attributes.give(other, json.loads(json.dumps(found)))

    assert found == {"seen": 3, "last": [2, 3], "sums": {"loss": [0.25]}, "share": 0.25}
    assert other.last == deque([2, 3]) and other.last.maxlen == 2
    assert torch.equal(other.share, first.share) and other.seen == 3
    assert other.sums["loss"] == [0.25] and other.sums["none"] == []


def test_what_is_too_much_to_be_a_state_is_left_alone():
    trainer = SimpleNamespace(rows=[0] * attributes.MOST, by_number={1: 2}, few=[0])

    assert attributes.plain(trainer) == {"few": [0]}


@pytest.mark.slow
def test_a_class_that_gathers_in_attributes_ends_as_plain_trl_after_a_stop(experiment, tmp_path):
    exp = experiment()
    stopped = at(exp, 1, 2, lambda: exp.stop(1))

    exp.run_fit(
        [RFGridSearch(config(seed=seed), Gathers) for seed in (1, 2)],
        tiny.create_model,
        tiny.sft_rows(14),
        tiny.sft_rows(18)[14:],
        num_chunks=3,
        eval_budget=1.0,
    )
    exp.wait(60)
    stopped[0].wait(60)
    exp.resume(1).wait(60)
    exp.wait(60)

    for run in exp.runs:
        assert run.status == "completed", run.trace
        assert_same(sliced(run), plain(run, tmp_path / f"plain{run.id}"), f"run {run.id}")


@pytest.mark.slow
def test_tensors_and_objects_that_no_checkpoint_has_are_told_before_training(experiment):
    exp = experiment()
    stopped = at(exp, 1, 2, lambda: exp.stop(1))

    exp.run_fit(
        RFGridSearch(config(), Averages), tiny.create_model, tiny.sft_rows(14), num_chunks=3
    )
    exp.wait(60)
    stopped[0].wait(60)
    ahead = str([e.data["notes"] for e in exp.events if e.kind == "run_prepared"])
    assert exp.run(1).exact
    exp.resume(1).wait(60)
    exp.wait(60)

    told = [f"its trainer's {name} is in no checkpoint and began anew" for name in ("mean", "seen")]
    assert all(f"a restart will not be exact: {one}" in ahead for one in told)
    assert all(one in repr(exp.run(1).exact) for one in told) and not exp.run(1).exact
    assert "scale" not in repr(exp.run(1).exact)


@pytest.mark.slow
def test_what_a_failed_step_gathered_is_forgotten_where_memory_ran_out(experiment):
    ended = []
    for name, callbacks, seconds in (("weights", [], 300), ("disk", [CountSteps], 1e-6)):
        scarce.batches["large"] = 0
        exp = experiment(name)
        one = scarce.config(4, 2, {"most": 3, "after": 1 + 2 * 4 + 1}, logging_steps=3)
        one = one.copy(callbacks=callbacks)

        exp.run_fit(
            RFGridSearch(one, Gathers),
            scarce.small_device,
            tiny.sft_rows(56),
            num_chunks=1,
            slice_steps=1,
            checkpoint_seconds=seconds,
            block=True,
        )

        assert exp.run(1).status == "completed", exp.run(1).trace
        assert [e.run for e in exp.events if e.kind == "run_adjusted"] == [1]
        ended.append(sliced(exp.run(1)))
    assert_same(*ended)


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [True, False])
def test_a_trainer_that_takes_no_peft_config_is_given_an_adapted_model(
    experiment, tmp_path, adapter
):
    ids = [tiny.tokenizer()(tiny.sentence(n, 8))["input_ids"][:10] for n in range(12)]
    exp = experiment()

    exp.run_fit(
        RFGridSearch(config(TrainingArguments, adapter), Trainer),
        tiny.create_model,
        [{"input_ids": one, "labels": one} for one in ids],
        num_chunks=2,
        block=True,
    )

    run = exp.run(1)
    assert run.status == "completed" and run.exact, run.trace
    assert (run.memory.weights < run.memory.base) is adapter
    assert_same(sliced(run), plain(run, tmp_path / "plain"))


@pytest.mark.slow
def test_a_class_whose_callbacks_prepare_it_is_not_failed_by_its_rehearsal(experiment, tmp_path):
    from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

    args = RFConfig(
        SDPOConfig,
        num_generations=2,
        per_device_train_batch_size=4,
        max_completion_length=4,
        max_steps=3,
        logging_steps=1,
    )
    rows = [
        {"prompt": row["prompt"], "privileged_context": row["completion"]}
        for row in tiny.sft_rows(8)
    ]
    one = config().copy(training_args=args, reward_funcs=[tiny.reward_length])
    exp = experiment()

    exp.run_fit(RFGridSearch(one, SDPOTrainer), tiny.create_model, rows, num_chunks=1, block=True)

    run = exp.run(1)
    assert run.status == "completed", run.trace
    assert_same(sliced(run), plain(run, tmp_path / "plain"))
