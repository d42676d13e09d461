"""Completions sampled for several runs at once: as TRL samples for each alone, or not at all."""

from collections import Counter

import pytest
import tiny
import torch
from oracle import assert_same, plain, sliced
from peft import LoraConfig
from test_mixed import LORA, base_of, run_on
from transformers import GenerationConfig, LlamaConfig, MixtralConfig

from rapidfire_jupyter import (
    RFGridSearch,
    RFGRPOConfig,
    RFLoraConfig,
    RFModelConfig,
    RFRLOOConfig,
)
from rapidfire_jupyter.training import generating, mixed, sampling
from rapidfire_jupyter.ui.fold import Fold

PROMPTS = [tiny.tokenizer()(row["prompt"])["input_ids"] for row in tiny.sft_rows(4)]
ARGS = {
    "learning_rate": 1e-2,
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 8,
    "num_train_epochs": 1,
    "logging_steps": 1,
}


def padded():
    """Prompts as TRL pads them, each twice."""
    width, rows = max(map(len, PROMPTS)), [ids for ids in PROMPTS for _ in range(2)]
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


def stream(seed):
    return torch.Generator().manual_seed(seed).get_state()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"temperature": 0.7, "top_k": 20},
        {"top_p": 0.8, "min_p": 0.01, "repetition_penalty": 1.3},
        {"eos_token_id": list(range(2, 320, 6))},
        {"eos_token_id": list(range(2, 320, 2)), "max_new_tokens": 40},
    ],
    ids=["plain", "top_k", "top_p", "ends", "all_end_early"],
)
def test_tokens_and_streams_are_those_of_generate_alone(same_bits, given):
    one, base = base_of(tiny.model())
    ranks = ({}, {"r": 16}, {"target_modules": "all-linear"})
    runs = [
        run_on(base, one, LoraConfig(**{**LORA, **more}), seed) for seed, more in enumerate(ranks)
    ]
    ids, mask = padded()
    how = {"max_new_tokens": 12, "do_sample": True, "pad_token_id": 0, "eos_token_id": [2]}
    how = GenerationConfig(**{**how, **given}, disable_compile=True)
    prompts = sampling.Prompts(ids, mask, how, base.model.generation_config)
    body, adapters = mixed.body(base), [mixed.adapter(run, base) for run in runs]

    with mixed.mixing(body, adapters):
        made = sampling.sampled(body, prompts, [stream(seed) for seed in range(3)])

    widths = set()
    with torch.random.fork_rng(devices=[]):
        for seed, run in enumerate(runs):
            torch.set_rng_state(stream(seed))
            rows = run.generate(input_ids=ids, attention_mask=mask, generation_config=how)
            assert torch.equal(rows, made[seed][0])
            assert torch.equal(torch.get_rng_state(), made[seed][1])
            widths.add(rows.shape[1] - ids.shape[1])
    if how.max_new_tokens == 40:
        assert max(widths) < 40 and len(widths) > 1  # runs ended early, and not at the same token


def test_a_loaders_draw_at_an_epochs_start_is_guessed_and_nothing_else():
    seat = generating.Seat(tiny.model(), None, (), 4, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        seat.at(3)
        torch.manual_seed(2)
        before = torch.get_rng_state()
        next(iter(torch.utils.data.DataLoader([1])))
        after = torch.get_rng_state()
        ((found, there),) = generating._guesses(before, after, [seat])
        torch.set_rng_state(seat.boundary.stream)
        next(iter(torch.utils.data.DataLoader([1])))
        assert found is seat and torch.equal(there.stream, torch.get_rng_state())
        assert there.step == 3
        torch.rand(1)

        assert generating._guesses(before, torch.get_rng_state(), [seat]) == []


def test_in_half_precision_a_trial_proves_nothing_so_runs_sample_alone(experiment):
    half = {"model_kwargs": {"dtype": "bfloat16"}}
    configs = [config(learning_rate=rate).copy(**half) for rate in (1e-2, 1e-3)]
    exp = experiment()

    generations = start(exp, *configs, block=True)

    assert [run.status for run in exp.runs] == ["completed"] * 2
    assert generations.taken == 0


def test_runs_sample_together_with_two_threads(
    experiment,
    monkeypatch,
    same_bits,
):
    configs = [config(learning_rate=rate) for rate in (1e-2, 1e-3)]
    torch.set_num_threads(2)
    exp = experiment()

    generations = start(exp, *configs, block=True)

    other = alone(experiment, monkeypatch, *configs)
    assert generations.taken in (0, 4)  # a machine may divide products otherwise
    for run in (1, 2):
        assert_same(sliced(exp.run(run)), sliced(other.run(run)), f"run {run}")


def test_models_whose_rows_depend_on_each_other_or_on_the_past_are_left_to_their_runs():
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}

    assert not mixed.rows_meet(tiny.model().config)
    assert mixed.rows_meet(MixtralConfig())
    assert mixed.rows_meet(LlamaConfig(rope_parameters=dynamic))


def config(kind="GRPO", peft_config=None, **given):
    given, arguments = {**ARGS, **given}, RFGRPOConfig if kind == "GRPO" else RFRLOOConfig
    return RFModelConfig(
        "tiny",
        peft_config=peft_config or RFLoraConfig(**LORA),
        reward_funcs=[tiny.reward_length],
        training_args=arguments(**given),
    )


def start(exp, *configs, kind="GRPO", rows=8, **how):
    searches = [RFGridSearch(one, kind) for one in configs]
    exp.run_fit(searches, tiny.create_model, tiny.grpo_rows(rows), num_chunks=2, **how)
    return exp._fit.executor.generations


def alone(experiment, monkeypatch, *configs, name="alone", **how):
    """The same runs, each of which samples for itself."""
    with monkeypatch.context() as patch:
        patch.setattr(mixed, "MOST_ROWS", 0)
        exp = experiment(name)
        generations = start(exp, *configs, block=True, **how)
        assert generations.taken == 0 and not any(
            e.data.get("turns") for e in exp.events if e.kind == "slice_started"
        )
    return exp


@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
def test_runs_sample_together_and_end_as_their_scripts_do(
    experiment,
    tmp_path,
    same_bits,
    kind,
):
    exp = experiment()
    configs = [
        config(kind, num_train_epochs=2),
        config(kind, RFLoraConfig(**{**LORA, "r": 8}), learning_rate=1e-3, num_train_epochs=2),
        config(kind, temperature=0.7, num_train_epochs=2),
    ]

    generations = start(exp, *configs, kind=kind, block=True)

    assert generations.taken == 8  # at each step, the second run took what the first had made
    for run in exp.runs:
        assert run.status == "completed" and run.exact, run.trace
        assert_same(sliced(run), plain(run, tmp_path / f"run-{run.id}"), f"run {run.id}")


@pytest.mark.parametrize(
    ("given", "cycles"),
    [
        ({"num_iterations": 2}, 4),
        ({"steps_per_generation": 2, "per_device_train_batch_size": 4}, 4),
        ({"steps_per_generation": 1, "gradient_accumulation_steps": 2}, 2),
        ({"bf16": True, "beta": 0.1, "gradient_checkpointing": True}, 4),
    ],
    ids=["iterations", "long", "short", "bf16"],
)
def test_batches_that_last_for_several_steps_or_parts_of_one_are_the_same(
    experiment,
    monkeypatch,
    same_bits,
    given,
    cycles,
):
    configs = [config(**given, learning_rate=rate) for rate in (1e-2, 1e-3)]
    exp = experiment()

    generations = start(exp, *configs, block=True)

    other = alone(experiment, monkeypatch, *configs)
    assert generations.taken == cycles
    for run in (1, 2):
        assert exp.run(run).exact
        assert_same(sliced(exp.run(run)), sliced(other.run(run)), f"run {run}")


def test_a_stop_a_resume_and_a_warm_clone_among_runs_that_sample_together(
    experiment,
    monkeypatch,
    same_bits,
):
    configs = [config(learning_rate=rate, num_train_epochs=3) for rate in (1e-2, 1e-3, 1e-4)]
    exp, asked = experiment(), []

    def listen(event):
        if event.kind == "advanced" and event.run == 1 and event.data["step"] == 3 and not asked:
            asked.append(exp.stop(2))  # what the first run made for its fourth step is kept for it
            asked.append(exp.clone(3, {}, warm=True))

    exp._opened.log.subscribe(listen)
    generations = start(exp, *configs)
    exp.run(2).wait()
    exp.resume(2).wait(60)
    exp.wait()

    other = alone(experiment, monkeypatch, *configs)
    assert asked[0].step == 3 or asked[0].step == 2
    assert [run.status for run in exp.runs] == ["completed"] * 4
    for run in (1, 2, 3):
        assert exp.run(run).exact
        assert_same(sliced(exp.run(run)), sliced(other.run(run)), f"run {run}")
    weights, clones = sliced(exp.run(3))[0], sliced(exp.run(4))[0]
    assert all(torch.equal(weights[name], clones[name]) for name in weights)
    assert generations.taken > 12
    # The slice that the stop cut is told, too, with what its own turns took.
    begun = [e for e in exp.events if e.kind == "slice_started"]
    ended = [e for e in exp.events if e.kind == "slice_ended"]
    assert Counter(e.run for e in begun) == Counter(e.run for e in ended)
    steps = Counter()
    for event in ended:
        steps[event.run] += event.data["steps"]
    assert [steps[i] for i in (1, 2, 3)] == [run.facts.total_steps for run in exp.runs][:3]
    known = Fold().read(exp.events)
    assert known.slice_count == len(ended) and known.open_slice is None
    assert known.trained_s < ended[-1].time - begun[0].time


class Meddling(tiny.Callback):
    """Does something between a boundary and the sampling that follows it."""

    def __init__(self, what):
        self.what = what

    def state(self):
        return {"args": {"what": self.what}, "attributes": {}}

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if self.what == "draws":
            torch.rand(1)
        elif self.what == "weights":
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.data.add_(0.01)
        elif self.what == "hooks" and state.global_step == 0:
            model.get_base_model().lm_head.register_forward_hook(lambda m, i, out: out * 1.01)


@pytest.mark.parametrize("who", [1, 2])
@pytest.mark.parametrize("what", ["draws", "weights", "hooks"])
def test_what_a_wrong_guess_costs_is_time(
    experiment,
    monkeypatch,
    same_bits,
    what,
    who,
):
    configs = [config(learning_rate=rate) for rate in (1e-2, 1e-3)]
    configs[who - 1] = configs[who - 1].copy(callbacks=[Meddling(what)])
    exp = experiment()

    generations = start(exp, *configs, block=True)

    other = alone(experiment, monkeypatch, *configs)
    assert generations.taken == {("weights", 1): 4, ("hooks", 2): 0}.get((what, who), 0)
    for run in (1, 2):
        assert_same(sliced(exp.run(run)), sliced(other.run(run)), f"run {run}")


@pytest.mark.parametrize(
    "other",
    [
        config(seed=7),
        config(top_k=5),
        config(max_completion_length=6),
        config(peft_config=RFLoraConfig(**LORA, lora_dropout=0.1)),
        config(peft_config=RFLoraConfig(**LORA, use_dora=True)),
        config(per_device_train_batch_size=4),
        config(generation_kwargs={"no_repeat_ngram_size": 2}),
    ],
)
def test_runs_that_sample_otherwise_sample_alone(experiment, other):
    exp = experiment()

    generations = start(exp, config(), other, block=True)

    assert [run.status for run in exp.runs] == ["completed"] * 2
    assert generations.taken == 0
    assert not any(e.data.get("turns") for e in exp.events if e.kind == "slice_started")


def test_slices_in_turns_are_told_once_for_a_chunk_and_each_run_pays_its_share(
    experiment,
    same_bits,
):
    exp = experiment()
    configs = [config(learning_rate=rate) for rate in (1e-2, 1e-3, 1e-4)]

    generations = start(exp, *configs, rows=16, block=True)

    assert generations.taken == 2 * 8
    ended = [e for e in exp.events if e.kind == "slice_ended"]
    begun = [e for e in exp.events if e.kind == "slice_started"]
    assert [(e.run, e.data["steps"]) for e in ended] == [(n, 4) for n in (1, 2, 3)] * 2
    assert [e.run for e in begun] == [1, 2, 3] * 2 and all(e.data["turns"] for e in begun)
    second = [e.data["seconds"] for e in ended[3:]]
    assert max(second) < 3 * min(second)
    assert sum(e.data["seconds"] for e in ended) < ended[-1].time - begun[0].time
    assert Fold().read(exp.events).slice_count == 6


def test_where_rows_depend_on_how_many_there_are_runs_sample_alone(
    experiment, monkeypatch, same_bits
):
    configs = [config(learning_rate=rate) for rate in (1e-2, 1e-3)]
    monkeypatch.setattr(
        generating, "first_logits", lambda g, p, tokens, runs=1: [[bytes([runs])] * 8 * runs]
    )
    exp = experiment()

    generations = start(exp, *configs, block=True)

    other = alone(experiment, monkeypatch, *configs)
    assert generations.taken == 0
    for run in (1, 2):
        assert_same(sliced(exp.run(run)), sliced(other.run(run)), f"run {run}")
