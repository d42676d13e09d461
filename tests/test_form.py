"""The clone form: fields, checks, and the previewed schedule, beside what training then does."""

import json

import pytest
import tiny
from test_experiment import grid
from transformers import TrainerCallback

from rapidfire_jupyter import RFGRPOConfig, RFLoraConfig, RFModelConfig, RFSFTConfig
from rapidfire_jupyter.arguments import Argument
from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.state import Run, State
from rapidfire_jupyter.ui import form, schedule


def config(**given):
    args = {"learning_rate": 1e-3, "per_device_train_batch_size": 4, **given}
    return RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(r=4, target_modules=["q_proj", "v_proj"]),
        training_args=RFSFTConfig(**args),
        compute_metrics=len,
        model_kwargs={"dropout": 0.1},
    ).build()


def never(run, new):
    return ""


@pytest.fixture(scope="module")
def fields():
    return {field["path"]: field for field in form.fields(config())}


@pytest.mark.parametrize(
    ("path", "kind", "value", "least", "most"),
    [
        ("training_args.learning_rate", "float", 1e-3, 0.0, None),
        ("training_args.per_device_train_batch_size", "int", 4, 1.0, None),
        ("training_args.max_steps", "int", -1, -1.0, None),
        ("training_args.bf16", "choice", None, None, None),
        ("training_args.fp16", "bool", False, None, None),
        ("training_args.lr_scheduler_type", "choice", "linear", None, None),
        ("peft_config.r", "int", 4, 1.0, None),
        ("peft_config.lora_dropout", "float", 0.0, 0.0, 1.0),
        ("peft_config.target_modules", "list", ["q_proj", "v_proj"], None, None),
        ("model_kwargs.dropout", "float", 0.1, None, None),
        ("model_name", "text", "tiny", None, None),
        ("seed", "int", None, 0.0, 2.0**32 - 1),
    ],
)
def test_a_hyperparameter_has_a_typed_field(fields, path, kind, value, least, most):
    field = fields[path]

    assert (field["kind"], field["value"]) == (kind, value)
    assert (field["least"], field["most"]) == (least, most)


def test_choices_are_named_and_functions_are_fixed(fields):
    assert {"linear", "cosine"} <= set(fields["training_args.lr_scheduler_type"]["choices"])
    assert fields["training_args.bf16"]["choices"] == [None, True, False]
    assert fields["compute_metrics"]["kind"] == "fixed"
    assert fields["compute_metrics"]["note"] == "change it in a cell: exp.clone(...)"


def test_what_the_engine_owns_or_keeps_secret_has_no_field(fields):
    assert not {"training_args.output_dir", "training_args.hub_token", "name"} & set(fields)


def test_given_fields_come_first_and_the_form_is_json(fields):
    given = [field["given"] for field in fields.values()]

    assert given == sorted(given, reverse=True) and 5 <= sum(given) < 20
    assert fields["training_args.warmup_steps"]["note"].startswith("Number of steps")
    json.dumps(list(fields.values()), allow_nan=False)


def _reward(completions, **kwargs):
    return [float(len(c)) for c in completions]


def test_forms_of_other_trainers_have_their_own_fields():
    args = RFGRPOConfig(num_generations=4)
    made = RFModelConfig("t", training_args=args, reward_funcs=_reward).build()

    fields = {field["path"]: field for field in form.fields(made)}

    assert fields["training_args.num_generations"]["least"] == 2
    assert not any(path.startswith("peft_config.") for path in fields)


def test_a_mixture_has_a_field_for_its_weights_as_they_are_now():
    weights = [[0, [0.5, 0.5]], [16, [0.8, 0.2]]]
    made = config().model.copy(mixture={"tasks": ["a", "b"], "weights": weights}).build()

    fields = {field["path"]: field for field in form.fields(made)}
    found = form.check(TRAINED, made, {"mixture.weights": [1, 1]}, never)
    wrong = form.check(TRAINED, made, {"mixture.weights": [1]}, never)

    assert "mixture.tasks" not in fields
    field = fields["mixture.weights"]
    assert (field["kind"], field["value"], field["given"]) == ("list", [0.8, 0.2], True)
    assert found["changed"] == {"mixture.weights": [weights, [0.5, 0.5]]}
    assert "weights need one number for each of 2 tasks" in wrong["errors"]["mixture.weights"]


def test_a_number_beside_named_texts_is_edited_as_text():
    assert form.field_kind(Argument(bool | str, True, ("gaussian",)), "gaussian")[0] == "choice"
    assert form.field_kind(Argument(float | str, 1.0), 1.0)[0] == "text"


# ------------------------------------------------------------------------------------- the check

TRAINED = Run(1, "", "SFT", {}, step=4)


def test_each_wrong_field_has_its_own_error():
    changes = {"peft_config.r": 0, "training_args.learning_rate": "fast", "nonsense": 1,
               "training_args.warmup_steps": 3}  # fmt: skip

    found = form.check(TRAINED, config(), changes, never)

    assert set(found["errors"]) == {"peft_config.r", "training_args.learning_rate", "nonsense"}
    assert "r must be >= 1, got 0" in found["errors"]["peft_config.r"]
    assert found["changed"] == {}


def test_only_what_differs_counts_as_changed():
    changes = {"peft_config.r": "4", "training_args.learning_rate": "5e-4"}

    found = form.check(TRAINED, config(), changes, never)

    assert found["errors"] == {}
    assert found["changed"] == {"training_args.learning_rate": [1e-3, 5e-4]}


def test_the_reason_against_a_warm_clone_is_given():
    fresh = Run(1, "", "SFT", {})

    assert form.check(fresh, config(), {}, never)["warm"] == "run 1 has no trained step yet"
    told = form.check(TRAINED, config(), {"seed": 3}, lambda run, new: f"{run} {new.model.seed}")
    assert told["warm"] == "1 3"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "raise num_train_epochs (or start cold)"),
        ({"learning_rate": 1e-5}, "raise num_train_epochs (or start cold)"),
        ({"num_train_epochs": 1}, "raise num_train_epochs (or start cold)"),
        ({"max_steps": 4}, "raise max_steps (or start cold)"),
        ({"max_steps": 5}, ""),
        ({"num_train_epochs": 9}, ""),
    ],
)
def test_a_warm_clone_of_a_finished_run_must_train_longer(changes, reason):
    finished = Run(1, "", "SFT", {}, status="completed", step=4)

    warm = form.check(finished, config(), changes, never)["warm"]

    assert warm.endswith(reason) and bool(warm) == bool(reason)
    assert form.check(TRAINED, config(), changes, never)["warm"] == ""


# ---------------------------------------------------------------------------------- the schedule


class Rates(TrainerCallback):
    """Keeps the learning rate that each step was trained with."""

    seen: dict = {}  # noqa: RUF012  # by number of steps of the run

    def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
        rates = self.seen.setdefault(state.max_steps, {})
        rates[state.global_step] = optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize(
    "args",
    [
        {"lr_scheduler_type": "linear", "warmup_steps": 2},
        {"lr_scheduler_type": "cosine", "warmup_steps": 0.25},
        {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 3},
        {
            "lr_scheduler_type": "cosine_with_min_lr",
            "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
        },
    ],
)
def test_the_preview_is_what_training_then_does(experiment, args):
    Rates.seen.clear()
    exp = experiment()
    parent = grid(num_train_epochs=1).runs()[0].model.copy(callbacks=[Rates])
    exp.run_fit(parent, tiny.create_model, tiny.sft_rows(22), num_chunks=2, block=True)
    changes = {f"training_args.{name}": value for name, value in args.items()}
    changes |= {"training_args.num_train_epochs": 2, "training_args.per_device_train_batch_size": 3}
    known = schedule.prepared(exp.state, exp.events, 1)

    shown = schedule.preview(exp._fit.configs[1], changes, True, known)
    exp.clone(1, changes, warm=True).wait(30)
    exp.wait(90)

    clone = exp.run(2)
    assert clone.status == "completed", clone.trace
    rates = Rates.seen[clone.facts.total_steps]
    assert (clone.facts.total_steps, clone.facts.clone_step) == (shown["steps"][-1], 6)
    drawn = {s: r for s, r in zip(shown["steps"], shown["clone"], strict=True) if r is not None}
    assert min(drawn) == shown["from_step"] == min(rates)
    assert {step: drawn[step] for step in rates} == pytest.approx(rates)


def test_a_long_schedule_is_drawn_with_few_steps():
    known = schedule.Prepared(steps_per_epoch=10_000, total_steps=30_000, rows=40_000, step=70)

    shown = schedule.preview(config(), {"training_args.learning_rate": 1.0}, False, known)

    assert len(shown["steps"]) <= 202 and shown["steps"][-1] == 30_000
    assert shown["clone"][0] == 1.0 and shown["parent"][0] == 1e-3


def test_a_run_that_was_not_prepared_has_no_schedule_yet():
    with pytest.raises(OpError, match="run 1 was not prepared yet"):
        schedule.prepared(State(), [], 1)
