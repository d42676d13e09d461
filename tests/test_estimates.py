"""What a run takes: counted where it can be, and close to what torch really allocates."""

import pytest
import tiny
import torch

from rapidfire_jupyter import RFDPOConfig, RFLoraConfig, RFModelConfig, RFSFTConfig
from rapidfire_jupyter.training.estimates import (
    Largest,
    Shape,
    activation_bytes,
    measuring,
    optimizer_bytes,
    shape_of,
)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("adamw_torch", torch.optim.AdamW),
        ("sgd", torch.optim.SGD),
        ("rmsprop", torch.optim.RMSprop),
        ("adagrad", torch.optim.Adagrad),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_optimizer_states_are_what_torch_allocates(name, make, dtype):
    layer = torch.nn.Linear(24, 16, dtype=dtype)
    optimizer = make(layer.parameters(), lr=0.1)
    layer(torch.ones(1, 24, dtype=dtype)).sum().backward()
    optimizer.step()

    real = sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for value in state.values()
        if torch.is_tensor(value) and value.dim() > 0
    )

    assert optimizer_bytes(name, list(layer.parameters())) == real


def test_adafactor_states_are_what_transformers_allocates():
    from transformers import Adafactor

    layer = torch.nn.Linear(24, 16)
    optimizer = Adafactor(layer.parameters(), lr=0.1, scale_parameter=False, relative_step=False)
    layer(torch.ones(1, 24)).sum().backward()
    optimizer.step()

    real = sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for value in state.values()
        if torch.is_tensor(value) and value.dim() > 0
    )

    assert optimizer_bytes("adafactor", list(layer.parameters())) == real


def test_eight_bit_states_are_a_quarter_and_their_scales():
    weight = torch.zeros(512, 512)

    assert optimizer_bytes("adamw_8bit", [weight]) == 2 * (512 * 512 + 4 * 1024)


@pytest.mark.parametrize(("hidden", "rows", "length"), [(64, 2, 32), (128, 4, 64), (96, 1, 128)])
def test_the_formula_is_near_what_a_forward_pass_keeps(hidden, rows, length):
    model = tiny.model(hidden=hidden, layers=4)
    ids = torch.ones(rows, length, dtype=torch.long)

    with measuring(model) as found:
        model.model(input_ids=ids).last_hidden_state.sum().backward()

    assert found.largest == Largest(rows, length * rows)
    expected = activation_bytes(shape_of(model.config), rows * length, 4, False, logits=False)
    assert 0.5 < expected / found.size_bytes < 2


def test_checkpointing_keeps_a_layers_input_and_one_layer():
    shape = Shape(hidden=100, layers=10, intermediate=400, vocabulary=1000)

    whole = activation_bytes(shape, 8, 2, False, logits=False)
    less = activation_bytes(shape, 8, 2, True, logits=False)

    assert less == whole // 10 + 10 * 8 * 100 * 2
    assert activation_bytes(shape, 8, 2, True, logits=True) - less == 8 * 1000 * 10


def test_a_run_tells_what_it_takes_and_keeps_it_over_a_restart(experiment):
    exp = experiment()
    lora = RFLoraConfig(r=4, target_modules=["q_proj"])
    args = RFSFTConfig(per_device_train_batch_size=4, num_train_epochs=1)
    exp.run_fit(
        [
            RFModelConfig("tiny", peft_config=lora, training_args=args),
            RFModelConfig("tiny", training_args=args.copy(gradient_checkpointing=False)),
        ],
        tiny.create_model,
        tiny.sft_rows(16),
        num_chunks=2,
        block=True,
    )

    first, second = exp.run(1).memory, exp.run(2).memory
    adapter = 2 * (32 * 4 + 4 * 32) * 4
    whole = sum(p.numel() * 4 for p in tiny.model().parameters())
    assert (first.weights, first.gradients, first.optimizer) == (adapter, adapter, 2 * adapter)
    assert first.base == whole and first.activations > 0 and first.measured
    assert (second.base, second.weights, second.optimizer) == (0, whole, 2 * whole)
    assert second.own == second.weights + second.gradients + second.optimizer + second.activations
    assert "MiB (measured)" in repr(first) and first.peak is None

    exp.resume(1, num_train_epochs=2).wait(60)
    exp.wait(60)
    assert exp.run(1).memory.activations // 1000 == first.activations // 1000


def test_a_base_that_is_the_reference_of_a_run_that_trains_all_weights_counts(experiment):
    exp = experiment()
    args = RFDPOConfig(per_device_train_batch_size=2, max_steps=1)
    exp.run_fit(
        RFModelConfig("tiny", training_args=args),
        tiny.create_model,
        tiny.dpo_rows(4),
        num_chunks=1,
        block=True,
    )

    told = exp.run(1).memory
    assert told.base == told.weights == size_of(tiny.model().parameters())


held = {}  # by seed: bytes that are there when a step has been taken


class Weighs(tiny.Callback):
    """Adds up the tensors that a run really has."""

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        held[args.seed] = {"gradients": size_of(gradients)}

    def on_step_end(self, args, state, control, model, optimizer, **kwargs):
        states = [v for one in optimizer.state.values() for v in one.values()]
        held[args.seed]["optimizer"] = size_of(v for v in states if torch.is_tensor(v) and v.dim())
        held[args.seed]["all"] = size_of(model.parameters())


def size_of(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.slow
def test_each_part_is_what_a_run_really_has(experiment):
    lora = {"r": 4, "target_modules": ["q_proj", "v_proj"]}
    ways = [
        ({}, {}, {}),
        ({"use_dora": True}, {}, {}),
        ({"modules_to_save": ["lm_head"]}, {}, {"optim": "adamw_torch_fused"}),
        ({}, {"dtype": "bfloat16"}, {"bf16": True}),
        (None, {}, {"optim": "adafactor"}),
        (None, {"dtype": "bfloat16"}, {"optim": "rmsprop"}),
        (None, {}, {"optim": "sgd"}),
    ]
    exp = experiment()
    exp.run_fit(
        [
            RFModelConfig(
                "tiny",
                peft_config=None if peft is None else RFLoraConfig(**lora, **peft),
                model_kwargs=kwargs,
                training_args=RFSFTConfig(per_device_train_batch_size=4, max_steps=2, **args),
                callbacks=[Weighs],
                seed=seed,
            )
            for seed, (peft, kwargs, args) in enumerate(ways)
        ],
        tiny.create_model,
        tiny.sft_rows(16),
        num_chunks=1,
        block=True,
    )

    for seed, run in enumerate(exp.runs):
        assert run.status == "completed", run.trace
        told, real = run.memory, held[seed]
        what = f"{ways[seed]}: {told}, not {real}"
        assert told.base + told.weights == pytest.approx(real["all"], rel=0.01), what
        assert told.gradients == pytest.approx(real["gradients"], rel=0.01), what
        assert told.optimizer == pytest.approx(real["optimizer"], rel=0.01), what
