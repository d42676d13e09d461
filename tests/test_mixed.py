"""Answers of several runs decoded together: the same as of each alone, and of whom it is tried."""

import copy
from types import SimpleNamespace

import pytest
import tiny
import torch
from oracle import assert_same, sliced
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from test_observing import EVAL, config, from_source, kept

from rapidfire_jupyter import List, RFGridSearch, RFLoraConfig
from rapidfire_jupyter.search import as_runs
from rapidfire_jupyter.training import generation, mixed, models

PROMPTS = [tuple(tiny.tokenizer()(row["prompt"])["input_ids"]) for row in tiny.sft_rows(13)]
LORA = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}


def base_of(model):
    (one,) = as_runs(RFGridSearch(config(), trainer_type="SFT"))
    given = models.load_base(
        one, lambda read: (model, tiny.tokenizer()), torch.device("cpu"), "base-1"
    )
    return one, given


def run_on(base, one, peft_config, seed=0):
    """A run's model, its adapter as if it had been trained."""
    model, _ = models.skeleton(base, one, peft_config, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = get_peft_model(model, peft_config)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, 0.0, 0.2)
    return model.eval()


def together(base, runs, rows=4, tokens=12):
    """What runs answer together, what each answers alone, and the mixer."""
    mixer, adapters = mixed.Mixer(), [mixed.adapter(run, base) for run in runs]
    how = generation.greedy(runs[0], tiny.tokenizer(), tokens)
    made = mixer.decode(base, runs[0], adapters, how, PROMPTS[:12], rows, lambda: None)
    alone = [generation.decode(run, how, PROMPTS[:12], rows, lambda: None) for run in runs]
    return made, [[tuple(answer) for answer in run] for run in alone], mixer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_runs_of_other_ranks_and_modules_answer_together_as_each_alone(same_bits, dtype):
    one, base = base_of(tiny.model(dtype=dtype))
    runs = [
        run_on(base, one, LoraConfig(**{**LORA, **given}), seed)
        for seed, given in enumerate(
            (
                {},
                {"r": 16, "lora_alpha": 4, "lora_dropout": 0.3},
                {"target_modules": "all-linear", "use_rslora": True},
                {"target_modules": ["lm_head"], "lora_bias": True},
            )
        )
    ]

    made, alone, mixer = together(base, runs)

    assert made == alone and mixer.answered == 4 * 12
    assert len({str(answers) for answers in alone}) == 4  # each adapter had its say
    models.check_untouched(base)
    assert not any(module._forward_hooks for module in base.model.modules())


class Crowded(torch.nn.Linear):
    """A layer whose result depends on how many rows there are, as on a GPU it does."""

    def forward(self, x):
        return super().forward(x) * (1 + 0.01 * (len(x) > 4))


def test_what_would_not_be_the_same_is_left_to_the_runs():
    model = tiny.model()
    model.lm_head.__class__ = Crowded
    one, base = base_of(model)
    runs = [run_on(base, one, LoraConfig(**LORA), seed) for seed in range(2)]

    made, _, mixer = together(base, runs)

    assert made == [[None] * 12] * 2 and mixer.answered == 0


def test_memory_that_does_not_suffice_leaves_a_batch_to_the_runs(monkeypatch):
    one, base = base_of(tiny.model())
    runs = [run_on(base, one, LoraConfig(**LORA), seed) for seed in range(2)]
    generate = type(base.model).generate

    def small(self, input_ids, **given):
        if len(input_ids) > 4 and given["generation_config"].max_new_tokens > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return generate(self, input_ids=input_ids, **given)

    monkeypatch.setattr(type(base.model), "generate", small)

    made, alone, _ = together(base, runs)

    assert made == [[None] * 12] * 2 and all(map(len, alone))


@pytest.mark.parametrize(
    "given",
    [
        LoraConfig(**LORA, use_dora=True),
        LoraConfig(**LORA, init_lora_weights="pissa"),
        LoraConfig(**LORA, modules_to_save=["lm_head"]),
        LoraConfig(r=4, target_modules=["embed_tokens"]),
        PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
    ],
    ids=["dora", "pissa", "modules_to_save", "embedding", "prompts"],
)
def test_what_is_not_plain_lora_over_the_base_answers_alone(given):
    one, base = base_of(tiny.model())

    assert mixed.adapter(run_on(base, one, given), base) is None
    assert mixed.adapter(run_on(base, one, LoraConfig(**LORA)), base) is not None
    assert mixed.adapter(copy.deepcopy(base.model), base) is None


def test_few_rows_of_short_prompts_share_a_batch_and_long_ones_do_not():
    short, long = [(1,) * 30] * 16, [(1,) * 600] * 16

    assert mixed.runs_at_once(short, 8) == 8
    assert mixed.runs_at_once(short, 4) == 16
    assert mixed.runs_at_once(long, 8) == 1
    assert mixed.runs_at_once([(1,)] * 3, 200) == 21


def test_a_probe_takes_the_time_of_a_batch_as_it_would_be_decoded(same_bits, monkeypatch):
    """On a clock that a forward moves on by its width, however many rows it has."""
    one, base = base_of(tiny.model())
    runs = [run_on(base, one, LoraConfig(**LORA), seed) for seed in range(3)]
    adapters = [mixed.adapter(run, base) for run in runs]
    clock, width = [0.0], max(map(len, PROMPTS))
    even = [ids + ids[:1] * (width - len(ids)) for ids in PROMPTS[:12]]
    forward = type(base.model).forward

    def timed(self, input_ids, **given):
        clock[0] += input_ids.shape[1]
        return forward(self, input_ids=input_ids, **given)

    monkeypatch.setattr(type(base.model), "forward", timed)
    monkeypatch.setattr(generation, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    how = generation.greedy(runs[0], tiny.tokenizer(), 20)

    def probed(lent):
        return mixed.Mixer().probe(base, runs[0], lent, how, even, 4, lambda: None)

    assert probed([]) == probed(adapters[:1]) == 3 * (width + 19)  # three batches
    assert probed(adapters) == pytest.approx(width + 19)


GIVEN = {"num_chunks": 2, "generate_rows": 10, "max_new_tokens": 6, "eval_budget": 1.0}


def test_an_experiments_runs_answer_together_what_each_would_alone_and_train_the_same(
    experiment, same_bits
):
    adapters = [
        RFLoraConfig(**LORA, lora_dropout=0.1),
        RFLoraConfig(**{**LORA, "r": 8}),
        RFLoraConfig(**LORA, use_dora=True),
        PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
        None,
    ]
    exp = experiment()
    grid = config(per_device_eval_batch_size=5).copy(peft_config=List(adapters))

    exp.run_fit(grid, tiny.create_model, tiny.sft_rows(16), EVAL, block=True, **GIVEN)

    assert exp._fit.executor.mixer.answered == 2 * 2 * 10  # chunk ends, runs, prompts
    for number, adapter in enumerate(adapters, 1):
        alone = experiment(f"alone-{number}")
        one = grid.copy(peft_config=adapter)
        alone.run_fit(one, tiny.create_model, tiny.sft_rows(16), EVAL, block=True, **GIVEN)
        assert exp.run(number).exact and alone._fit.executor.mixer.answered == 0
        assert_same(sliced(exp.run(number)), sliced(alone.run(1)), f"run {number}")
        for step in (2, 4):
            assert kept(exp, number, step) == kept(alone, 1, step)
        rows, single = (from_source(e, n, "generation") for e, n in ((exp, number), (alone, 1)))
        assert rows == single


def test_runs_answer_a_person_together_what_each_would_alone(experiment, same_bits):
    exp = experiment()
    adapters = [
        RFLoraConfig(**LORA, lora_dropout=0.1),
        RFLoraConfig(**{**LORA, "r": 8}),
        RFLoraConfig(**LORA, use_dora=True),
        None,
    ]
    grid = config(num_train_epochs=4).copy(peft_config=List(adapters))
    prompts = ["how do i cancel", *(row["prompt"] for row in tiny.sft_rows(4))]
    given = {**GIVEN, "generate_rows": 0}
    exp.run_fit(grid, tiny.create_model, tiny.sft_rows(16), EVAL, **given)
    exp.pause_all().wait(60)
    mixer = exp._fit.executor.mixer

    during = exp.sample([1, 2, 3, 4], prompts, 7)
    answered = mixer.answered
    alone = [exp.sample(run, prompts, 7) for run in (1, 2, 3, 4)]
    exp.resume_all().wait(60)
    exp.wait()
    after = exp.sample([4, 3, 2, 1], prompts, 7)

    assert answered == 2 * 5  # runs, prompts
    assert mixer.answered == 2 * answered  # those that have ended, too
    for run, own in enumerate(alone, 1):
        assert during[f"run {run}"].tolist() == own[f"run {run}"].tolist()
        assert after[f"run {run}"].tolist() == exp.sample(run, prompts, 7)[f"run {run}"].tolist()
        assert exp.run(run).exact


def test_what_answers_cost_is_tried_with_all_that_will_answer_and_changes_nothing(
    experiment, same_bits
):
    exp, plain = experiment(), experiment("plain")
    grid, given = config(learning_rate=List([1e-2, 1e-3, 1e-4])), {**GIVEN, "eval_budget": 0.5}
    plain.run_fit(grid, tiny.create_model, tiny.sft_rows(16), EVAL, block=True, **GIVEN)
    tried = []

    def listen(event):
        if event.kind == "eval_probed":
            tried.extend(runs for _, (runs, *_) in exp._fit.executor.mixer._same)

    exp._opened.log.subscribe(listen)
    exp.run_fit(grid, tiny.create_model, tiny.sft_rows(16), EVAL, block=True, **given)

    assert tried == [3]
    for run in (1, 2, 3):
        assert_same(sliced(exp.run(run)), sliced(plain.run(run)), f"run {run}")


@pytest.mark.parametrize("stopped", [1, 2])
def test_a_stop_while_runs_answer_together_costs_the_others_nothing(experiment, stopped):
    exp, plain = experiment(), experiment("plain")
    grid = config(learning_rate=List([1e-2, 1e-3, 1e-4]))
    given = {**GIVEN, "max_new_tokens": 40}
    plain.run_fit(grid, tiny.create_model, tiny.sft_rows(16), EVAL, block=True, **given)
    handles = []

    def listen(event):  # the first run's second slice begins with the answers that all owe
        if event.kind == "slice_started" and event.data["step"] == 2 and not handles:
            handles.append(exp.stop(stopped))

    exp._opened.log.subscribe(listen)
    exp.run_fit(grid, tiny.create_model, tiny.sft_rows(16), EVAL, **given)
    exp.run(stopped).wait()

    assert handles[0].wait(60).step == 2 and exp.run(stopped).status == "stopped"
    exp.resume(stopped).wait(60)
    exp.wait()
    for run in (1, 2, 3):
        assert exp.run(run).status == "completed", exp.run(run).trace
        assert_same(sliced(exp.run(run)), sliced(plain.run(run)), f"run {run}")
        for step in (2, 4):
            assert kept(exp, run, step) == kept(plain, run, step)


def test_each_run_is_charged_for_its_own_answers(experiment):
    exp = experiment()
    grid = config(learning_rate=List([1e-2, 1e-3, 1e-4, 1e-5]))

    exp.run_fit(grid, tiny.create_model, tiny.sft_rows(16), EVAL, block=True, **GIVEN)

    spent = {
        e.run: e.data["seconds"]
        for e in exp.events
        if e.kind == "logged" and e.data["source"] == "generation" and e.data["row"]["step"] == 2
    }
    ended = [e for e in exp.events if e.kind == "slice_ended"]
    paid = {e.run: e.data for e in ended if e.data["step"] == 2 and e.data["steps"] == 0}
    assert sorted(spent) == sorted(paid) == [1, 2, 3, 4]
    for run in paid:
        assert 0 < spent[run] <= paid[run]["eval_seconds"] <= paid[run]["seconds"]
    began, took = exp.events[0].time, sum(e.data["seconds"] for e in ended)
    assert took < max(e.time for e in exp.events) - began


@pytest.mark.parametrize("parent", [1, 2])
def test_a_warm_clone_is_made_while_runs_answer_together(experiment, parent):
    exp, handles = experiment(), []

    def listen(event):
        if event.kind == "slice_started" and event.data["step"] == 2 and not handles:
            handles.append(exp.clone(parent, {"learning_rate": 1e-5}, warm=True))

    exp._opened.log.subscribe(listen)
    grid = config(learning_rate=List([1e-2, 1e-3]))
    exp.run_fit(grid, tiny.create_model, tiny.sft_rows(16), EVAL, block=True, **GIVEN)

    assert handles[0].wait(60).step == 2
    assert [run.status for run in exp.runs] == ["completed"] * 3
    assert [row["step"] for row in from_source(exp, parent, "generation")] == [2, 4]


class Seldom(torch.nn.Linear):
    """A layer in which another order of summing shows at every fifth token only."""

    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + (x.shape[1] == 1)
        shows = len(x) > 4 and self.calls % 5 == 4
        return super().forward(x) * (1 + 0.01 * shows)


def test_in_half_precision_more_tokens_are_tried_and_one_difference_tells_of_all_widths():
    model = tiny.model(dtype=torch.bfloat16)
    model.lm_head.__class__ = Seldom
    one, base = base_of(model)
    runs = [run_on(base, one, LoraConfig(**LORA), seed) for seed in range(2)]

    made, _, mixer = together(base, runs)

    assert made == [[None] * 12] * 2 and mixer.answered == 0
    assert list(mixer._same.values()) == [False]


@pytest.mark.parametrize(
    "given",
    [{"num_local_experts": 8}, {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}],
    ids=["experts", "stretching rotary embeddings"],
)
def test_where_rows_meet_in_more_than_shapes_each_run_answers_alone(given):
    one, base = base_of(tiny.model())
    run = run_on(base, one, LoraConfig(**LORA))
    for name, value in given.items():
        setattr(base.model.config, name, value)

    assert mixed.adapter(run, base) is None
