"""The user's things stay the user's, a bad run fails alone, and which cells may touch a run."""

import contextlib
import gc
import io
import logging
import random
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from IPython.core.autocall import ExitAutocall
from IPython.core.interactiveshell import InteractiveShell
from oracle import assert_same, sliced
from traitlets.config import Config
from trl import SFTTrainer

from rapidfire_jupyter import (
    Experiment,
    RFGRPOConfig,
    RFLoraConfig,
    RFModelConfig,
    RFSFTConfig,
    cell_source,
    isolation,
)
from rapidfire_jupyter.config import flatten
from rapidfire_jupyter.encoding import encode
from rapidfire_jupyter.engine import engine
from rapidfire_jupyter.training import context, process
from rapidfire_jupyter.waiting import until

ROWS = tiny.sft_rows(12)
DROPOUT = {"model_kwargs": {"dropout": 0.1}}
ACCUMULATING = {"gradient_accumulation_steps": 3, "num_train_epochs": 3}


def config(model=None, lora=None, **given):
    """Six steps of SFT; without `DROPOUT` nothing in them draws random numbers."""
    args = {
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 2,
        "num_train_epochs": 1,
        "logging_steps": 1,
        **given,
    }
    return RFModelConfig(
        "tiny",
        peft_config=lora or RFLoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]),
        training_args=RFSFTConfig(**args),
        **(model or {}),
    )


def fit(exp, configs, create_model=tiny.create_model, **how):
    return exp.run_fit(configs, create_model, ROWS, num_chunks=3, **how)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What runs end with beside which nothing happens; only "dropout" draws random numbers."""
    torch.set_num_threads(1)
    configs = {
        "quiet": config(),
        "dropout": config(DROPOUT),
        "seed 7": config(seed=7),
        "accumulating": config(**ACCUMULATING),
    }
    exp = Experiment("undisturbed", root=tmp_path_factory.mktemp("undisturbed"))
    fit(exp, list(configs.values()), block=True)
    ended = [sliced(run) for run in exp.runs]
    exp.end()
    return dict(zip(configs, ended, strict=True))


class Meeting:
    """Lets the main thread act at a moment that a run's thread chose, while that one waits."""

    def __init__(self):
        self._here, self._done = threading.Event(), threading.Event()

    def __call__(self):
        self._here.set()
        assert self._done.wait(60), "the main thread did not come"

    @property
    def is_over(self):
        return self._done.is_set()

    def act(self, action):
        assert self._here.wait(60), "the run did not come"
        try:
            return action()
        finally:
            self._done.set()


def cell(source):
    """What IPython tells of a cell that begins."""
    return SimpleNamespace(raw_cell=source)


DRAWS = cell("import torch; torch.rand(3)")


def calling(hook, actions):
    """A callback that calls an action when a hook comes to its step."""

    def call(self, args, state, control, **kwargs):
        if state.global_step in actions:
            actions[state.global_step]()

    return type("Calling", (tiny.Callback,), {hook: call})


def met(hook, step, **given):
    """A config whose run meets the main thread at a step, and the meeting."""
    meeting = Meeting()
    return config(**given).copy(callbacks=[calling(hook, {step: meeting})]), meeting


# ------------------------------------------------------------------------------ the user's streams


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def draw():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_the_users_random_streams_continue_as_without_training(experiment):
    seed_all(5)
    expected = [draw() for _ in range(4)]
    exp = experiment()
    seed_all(5)

    seen = [draw()]
    exp.run_fit([config(DROPOUT), config()], tiny.create_model, ROWS, ROWS[:2], num_chunks=3)
    exp.pause_all().wait(60)
    seen.append(draw())
    exp.resume_all().wait(60)
    exp.wait(60)
    seen.append(draw())
    exp.end()
    seen.append(draw())

    assert seen == expected


def test_a_cell_that_reseeds_beside_a_step_leaves_a_run_that_draws_nothing_as_it_was(
    experiment, undisturbed
):
    seed_all(999)
    expected = [draw(), draw()]
    meeting, drawn = Meeting(), []
    hooked = config().copy(callbacks=[calling("on_step_begin", {2: meeting})])
    exp = experiment()

    fit(exp, [hooked, config(seed=7)])
    meeting.act(lambda: (seed_all(999), drawn.append(draw())))
    exp.wait(60)
    drawn.append(draw())

    assert_same(sliced(exp.run(1)), undisturbed["quiet"], "reseeded beside")
    assert_same(sliced(exp.run(2)), undisturbed["seed 7"], "the next run")
    assert drawn == expected  # the user's streams go on from the seed, also after training


def test_streams_that_a_cell_forks_and_puts_back_are_the_users_own_again(experiment, undisturbed):
    meeting = Meeting()
    exp = experiment()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)

    def fork():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            torch.rand(1)

    fit(exp, config().copy(callbacks=[calling("on_step_begin", {2: meeting})]))
    meeting.act(fork)
    exp.wait(60)

    assert torch.equal(torch.rand(2), expected)
    assert_same(sliced(exp.run(1)), undisturbed["quiet"])


# ----------------------------------------------------------------------------- the user's settings


@pytest.fixture
def settings():
    """Process-wide settings, put back after a test."""
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)


def test_settings_that_a_cell_makes_beside_a_step_stay_and_change_no_run(
    experiment, undisturbed, settings
):
    meeting = Meeting()
    hooked = config().copy(callbacks=[calling("on_pre_optimizer_step", {2: meeting})])
    exp = experiment()

    fit(exp, [hooked, config(seed=7)])
    meeting.act(
        lambda: (
            torch.manual_seed(999),
            np.random.seed(1),
            torch.set_default_dtype(torch.float64),
            torch.set_grad_enabled(False),
        )
    )
    exp.wait(60)

    assert torch.get_default_dtype() is torch.float64 and not torch.is_grad_enabled()
    assert torch.initial_seed() == 999
    assert_same(sliced(exp.run(1)), undisturbed["quiet"])
    assert_same(sliced(exp.run(2)), undisturbed["seed 7"])


def test_settings_made_before_training_are_in_force_between_turns_and_afterwards(
    experiment, undisturbed, settings
):
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    exp = experiment()

    fit(exp, [config(), config(DROPOUT)])
    exp.pause_all().wait(60)
    between = torch.get_default_dtype(), torch.is_grad_enabled()
    exp.resume_all().wait(60)
    exp.wait(60)

    assert between == (torch.float64, False)
    assert torch.get_default_dtype() is torch.float64 and not torch.is_grad_enabled()
    assert_same(sliced(exp.run(1)), undisturbed["quiet"])
    assert_same(sliced(exp.run(2)), undisturbed["dropout"])


def test_a_dtype_that_a_run_leaves_set_does_not_become_the_users(experiment):
    def create_model(values):
        torch.set_default_dtype(torch.bfloat16)
        return tiny.create_model(values)

    exp = experiment()
    fit(exp, config(max_steps=1), create_model, block=True)

    assert exp.run(1).status == "completed", exp.run(1).trace
    assert torch.get_default_dtype() is torch.float32


def test_a_dtype_that_a_cell_sets_for_a_while_is_not_changed_under_its_hands(settings):
    process.install()
    order, ready = [], threading.Event()
    run = context.RunContext(io.StringIO())

    def turn():
        ready.set()
        run.enter()
        order.append(torch.get_default_dtype())
        run.leave()

    torch.set_default_dtype(torch.bfloat16)  # as from_pretrained does while it builds a model
    thread = threading.Thread(target=turn)
    thread.start()
    ready.wait(60)
    order.append("set back")
    torch.set_default_dtype(torch.float32)
    thread.join(60)

    assert order == ["set back", torch.float32]


def test_a_context_tells_what_users_threads_set_while_a_run_was_inside(settings):
    process.install()
    meeting, run, told = Meeting(), context.RunContext(io.StringIO()), []

    def turn():
        run.enter()
        torch.manual_seed(0)  # the run's own
        meeting()
        told.extend([run.touched(), run.touched()])
        run.leave()

    thread = threading.Thread(target=turn)
    thread.start()
    meeting.act(
        lambda: (
            np.random.seed(0),
            torch.set_default_dtype(torch.float64),
            torch.set_default_dtype(torch.float32),
        )
    )
    thread.join(60)

    assert told == [("the default dtype", "the random stream of numpy"), ()]


def test_switches_of_progress_bars_are_left_alone(experiment):
    import datasets
    from transformers.utils import logging as transformers_logging

    def switches():
        return datasets.are_progress_bars_disabled(), transformers_logging.is_progress_bar_enabled()

    try:
        for disable in (True, False):
            if disable:
                datasets.disable_progress_bars()
                transformers_logging.disable_progress_bar()
            else:
                datasets.enable_progress_bars()
                transformers_logging.enable_progress_bar()
            exp = experiment(f"disabled={disable}")
            fit(exp, config(max_steps=1))
            exp.pause_all().wait(60)
            between = switches()
            exp.resume_all()
            exp.wait(60)
            assert between == switches() == (disable, not disable)
    finally:
        datasets.enable_progress_bars()
        transformers_logging.enable_progress_bar()


# ------------------------------------------------------------------------------------------ output


def test_text_of_runs_goes_to_their_logs_and_text_of_cells_where_it_went(experiment, capsys):
    from tqdm.auto import tqdm

    first, last, mine = Meeting(), Meeting(), io.StringIO()
    console = logging.getLogger("a_users_logger")
    handler = logging.StreamHandler()
    console.addHandler(handler)

    def create_model(values):
        print("printed in create_model_fn")
        return tiny.create_model(values)

    def talk():
        print("printed in a callback")
        print("an error of a callback", file=sys.stderr)
        sys.stdout.writelines(["line one\n", "line two\n"])
        console.warning("warned by %s", "a callback")
        thread = threading.Thread(target=lambda: print("printed in a thread of a run"))
        thread.start()
        thread.join()
        for _ in tqdm(range(3), desc="counting rows"):
            tqdm.write("written over a bar")
        first()
        print("printed while a cell captures")
        last()

    exp = experiment()
    print("before")
    with contextlib.ExitStack() as capturing:
        fit(
            exp,
            config().copy(callbacks=[calling("on_step_end", {2: talk})]),
            create_model,
        )
        first.act(lambda: capturing.enter_context(contextlib.redirect_stdout(mine)))
        last.act(lambda: (print("a cell's own"), capturing.close()))
    exp.wait(60)
    console.warning("warned by the user")
    print("after")
    console.removeHandler(handler)

    shown = capsys.readouterr()
    log = (exp.run(1).folder / "train.log").read_text()
    assert shown.out.startswith("before\n1 run\n") and shown.out.endswith("\nafter\n")
    assert shown.err == "warned by the user\n"
    assert mine.getvalue() == "a cell's own\n"
    for text in (
        "printed in create_model_fn",
        "printed in a callback",
        "an error of a callback",
        "line one\nline two\n",
        "WARNING a_users_logger: warned by a callback",
        "printed in a thread of a run",
        "counting rows: 3 it",
        "written over a bar",
        "printed while a cell captures",
    ):
        assert text in log and text not in shown.out + shown.err + mine.getvalue()
    assert log.count("warned by a callback") == 1


def test_a_users_log_file_gets_what_it_got(experiment, tmp_path):
    logger = logging.getLogger("a_users_file")
    handler = logging.FileHandler(tmp_path / "mine.log")
    logger.addHandler(handler)
    exp = experiment()

    fit(
        exp,
        config(max_steps=1).copy(
            callbacks=[calling("on_step_end", {1: lambda: logger.warning("step one")})]
        ),
        block=True,
    )
    logger.removeHandler(handler)
    handler.close()

    assert (tmp_path / "mine.log").read_text() == "step one\n"


# ------------------------------------------------------------------------------ the user's objects


def model_facts(model):
    return {
        "config": model.config.to_dict(),
        "generation_config": model.generation_config.to_dict(),
        "modules": {n: (sorted(m.__dict__), m.training) for n, m in model.named_modules()},
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        "parameters": {
            n: (id(p), p.data_ptr(), p.dtype, p.requires_grad, p.grad)
            for n, p in model.named_parameters()
        },
        "checkpointing": model.is_gradient_checkpointing,
    }


def tokenizer_facts(tokenizer):
    names = ("pad_token", "eos_token", "padding_side", "truncation_side", "chat_template")
    return (
        {name: getattr(tokenizer, name) for name in names},
        len(tokenizer),
        tokenizer.backend_tokenizer.to_str(),
    )


class Counting(tiny.Callback):
    """A user's callback object; runs get copies of it."""

    def __init__(self):
        self.steps = 0

    def on_step_end(self, args, state, control, **kwargs):
        self.steps += 1


def test_the_users_model_tokenizer_configs_callbacks_and_data_are_as_they_were(experiment):
    from datasets import Dataset
    from peft import LoraConfig

    model, tokenizer = tiny.model(), tiny.tokenizer()
    tokenizer.pad_token = None
    model.config.pad_token_id = None
    model.config.use_cache = True
    data, callback = Dataset.from_list(ROWS), Counting()
    lora = LoraConfig(r=2, target_modules=["v_proj"], task_type="CAUSAL_LM")
    grpo = RFGRPOConfig(
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=4,
        max_steps=1,
    )
    configs = [
        config(max_steps=2).copy(callbacks=[callback]),
        config(lora=lora, max_steps=2, gradient_checkpointing=True, neftune_noise_alpha=5.0),
        config(max_steps=2).copy(training_args=grpo, reward_funcs=[tiny.reward_length]),
    ]
    ids = torch.arange(8)[None]
    logits = model(input_ids=ids).logits
    weights = {n: p.detach().clone() for n, p in model.named_parameters()}

    def facts():
        return (
            model_facts(model),
            tokenizer_facts(tokenizer),
            [encode(flatten(as_run)) for as_run in map(_run_config, configs)],
            lora.to_dict(),
            vars(callback),
            (data.column_names, data._fingerprint, data[:]),
        )

    before = facts()
    exp = experiment()
    exp.run_fit(configs, lambda values: (model, tokenizer), data, data.select([0]), num_chunks=1)
    exp.wait(60)

    assert [run.status for run in exp.runs] == ["completed"] * 3, [run.trace for run in exp.runs]
    for was, now in zip(before, facts(), strict=True):
        assert now == was
    assert all(torch.equal(p, weights[n]) for n, p in model.named_parameters())
    assert torch.equal(model(input_ids=ids).logits, logits)
    assert not [n for n, _ in model.named_modules() if "lora" in n]


def _run_config(model_config):
    from rapidfire_jupyter.search import as_search

    return as_search(model_config, None).runs()[0]


# ------------------------------------------------------------------- the user's own training beside


def own_training(folder, model, on_step_end=None):
    """A user's own SFT training, as a cell would do it; gives what it logged and its weights."""
    from accelerate import Accelerator
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    Accelerator()
    args = SFTConfig(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=5,
        learning_rate=1e-2,
        logging_steps=1,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        seed=11,
        data_seed=11,
    )
    trainer = SFTTrainer(
        model,
        args,
        train_dataset=Dataset.from_list(ROWS),
        processing_class=tiny.tokenizer(),
        callbacks=[on_step_end] if on_step_end else None,
    )
    Accelerator(gradient_accumulation_steps=4)
    trainer.train()
    timing = ("runtime", "per_second")
    rows = [
        {k: v for k, v in row.items() if not any(t in k for t in timing)}
        for row in trainer.state.log_history
    ]
    return rows, {n: p.detach().clone() for n, p in trainer.model.named_parameters()}


@pytest.mark.slow
def test_a_users_own_training_beside_three_runs_and_the_runs_are_as_if_alone(
    experiment, undisturbed, tmp_path
):
    alone = own_training(tmp_path / "alone", tiny.model(seed=4))
    model = tiny.model(seed=4)
    exp = experiment()
    logged, built, beside = threading.Event(), threading.Semaphore(0), set()

    def follow(event):
        if event.kind == "logged":
            logged.set()
        elif event.kind == "run_prepared":
            built.release()

    class TakeTurns(tiny.Callback):
        """Each own step waits until a run has logged a step meanwhile."""

        def on_step_end(self, args, state, control, **kwargs):
            assert logged.wait(60)
            logged.clear()
            beside.update(run.id for run in exp.runs if run.rows and run.status == "running")

    exp._opened.log.subscribe(follow)
    fit(exp, [config(), config(seed=7), config(**ACCUMULATING)], slice_steps=2)
    for _ in exp.runs:  # adapters are drawn while a run is built: a seed set then is in `run.exact`
        assert built.acquire(timeout=60)
    rows, weights = own_training(tmp_path / "beside", model, TakeTurns())
    exp.wait(60)

    assert beside
    assert_same(sliced(exp.run(1)), undisturbed["quiet"], "quiet")
    assert_same(sliced(exp.run(2)), undisturbed["seed 7"], "seed 7")
    assert_same(sliced(exp.run(3)), undisturbed["accumulating"], "accumulating")
    assert rows == alone[0]
    assert all(torch.equal(value, alone[1][name]) for name, value in weights.items())


def test_a_cell_that_builds_arguments_and_an_accelerator_in_a_step_changes_no_run(
    experiment, undisturbed, tmp_path
):
    from accelerate import Accelerator
    from trl import SFTConfig

    hooked, meeting = met("on_substep_end", 1, **ACCUMULATING)
    exp = experiment()

    def build():
        arguments = SFTConfig(output_dir=str(tmp_path / "mine"), use_cpu=True, bf16=True)
        return arguments, Accelerator(gradient_accumulation_steps=7)

    fit(exp, [hooked, config(**ACCUMULATING)])
    _, mine = meeting.act(build)
    exp.wait(60)

    assert mine.gradient_accumulation_steps == 7
    for run in exp.runs:
        assert_same(sliced(run), undisturbed["accumulating"], run.name)


# ---------------------------------------------------------------------------- bad runs fail alone


held = []  # weak references to what failed steps allocated


class Exploding(torch.nn.Module):
    """Mixed into a layer: at a later step of the training it fails, or gives no number."""

    calls, how = 0, ""

    def forward(self, hidden):
        if self.training:
            type(self).calls += 1
        if not self.training or self.calls < 5:
            return super().forward(hidden)
        if self.how == "nan":
            return super().forward(hidden) * float("nan")
        activations = torch.zeros(25_000_000)  # 100 MB
        held.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 100.00 MiB.\nmore text")


def exploding(how):
    made = tiny.model()
    layer = made.model.layers[0].mlp
    layer.__class__ = type("MLP", (Exploding, type(layer)), {"how": how, "calls": 0})
    return made


def create_faulty_model(values):
    fault = values["model_kwargs"].get("fault")
    if fault == "create":
        raise RuntimeError("this model cannot be created")
    return (exploding(fault) if fault else tiny.create_model(values)[0]), tiny.tokenizer()


class Raising:
    """Raises at its n-th call; copies share the count."""

    def __init__(self, at, inner=None):
        self.calls, self.at, self.inner = [], at, inner
        self.__name__ = "raising"

    def __deepcopy__(self, memo):
        return self

    def __call__(self, *args, **kwargs):
        self.calls.append(1)
        if len(self.calls) >= self.at:
            raise ValueError("this row is bad")
        return self.inner(*args, **kwargs)


@pytest.fixture(scope="module")
def storm(tmp_path_factory):
    """An experiment in which every run but the first and last two has a fault of its own."""
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    torch.set_num_threads(1)
    grpo = RFGRPOConfig(
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=4,
        max_steps=6,
        logging_steps=1,
    )
    callback = calling("on_step_end", {3: lambda: 1 / 0})
    runs = {
        "dropout": config(DROPOUT),
        "collator": config({"data_collator": Raising(6, DataCollatorForLanguageModeling(0))}),
        "memory": config({"model_kwargs": {"fault": "memory"}}),
        "nan": config({"model_kwargs": {"fault": "nan"}}),
        "create": config({"model_kwargs": {"fault": "create"}}),
        "callback": config({"callbacks": [callback]}),
        "reward": config().copy(training_args=grpo, reward_funcs=[Raising(3, tiny.reward_length)]),
        "metrics": config(
            {"compute_metrics": Raising(2, lambda prediction: {"accuracy": 0.5})},
            eval_strategy="steps",
            eval_steps=2,
        ),
        "quiet": config(),
        "seed 7": config(seed=7),
    }
    exp = Experiment("storm", root=tmp_path_factory.mktemp("storm"))
    exp.run_fit(list(runs.values()), create_faulty_model, ROWS, ROWS[:2], num_chunks=3)
    exp.wait(180)
    yield SimpleNamespace(exp=exp, **{n: exp.runs[i] for i, n in enumerate(runs)}, names=list(runs))
    exp.end()


FAULTS = {
    "collator": ("ValueError: this row is bad", "in __call__"),
    "memory": (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 100.00 MiB.",
        "in forward",
    ),
    "nan": ("the loss became nan at step", "RapidFireError"),
    "create": ("RuntimeError: this model cannot be created", "in create_faulty_model"),
    "callback": ("ZeroDivisionError: division by zero", "in call"),
    "reward": ("ValueError: this row is bad", "in __call__"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_with_a_fault_fails_with_one_line_and_the_traceback(storm, fault):
    error, where = FAULTS[fault]

    run = getattr(storm, fault)

    assert run.status == "failed"
    assert error in run.error and "\n" not in run.error
    assert run.trace.startswith("Traceback (most recent call last):") and where in run.trace
    event = next(e for e in storm.exp.events if e.kind == "run_failed" and e.run == run.id)
    assert (event.data["error"], event.data["trace"]) == (run.error, run.trace)


@pytest.mark.slow
def test_faults_come_in_the_middle_of_training_not_only_at_its_start(storm):
    trained = {fault: bool(getattr(storm, fault).rows) for fault in FAULTS}

    assert trained == {**dict.fromkeys(FAULTS, True), "create": False}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dropout", "quiet", "seed 7"])
def test_runs_beside_failing_ones_are_as_undisturbed(storm, undisturbed, name):
    run = storm.exp.runs[storm.names.index(name)]

    assert run.status == "completed" and run.exact, (run.trace, run.exact)
    weights, optimizer, rows = sliced(run)
    assert_same((weights, optimizer, rows), undisturbed[name], name)


@pytest.mark.slow
def test_metrics_that_raise_cost_their_evaluation_and_nothing_else(storm, undisturbed):
    run = storm.metrics

    alerts = [e.data["text"] for e in storm.exp.events if e.kind == "alert" and e.run == run.id]
    evaluated = [row for row in run.rows if "eval_loss" in row]
    weights, optimizer, rows = sliced(run)

    assert run.status == "completed" and run.exact
    assert len(alerts) == 2 and "compute_metrics raised ValueError('this row is bad')" in alerts[0]
    assert "Traceback" in alerts[0] and "in __call__" in alerts[0]
    assert ["eval_accuracy" in row for row in evaluated] == [True, False, False]
    trained = [row for row in rows if "eval_loss" not in row]
    assert_same((weights, optimizer, trained), undisturbed["quiet"], "with metrics that raise")


@pytest.mark.slow
def test_what_a_failed_step_held_is_freed_while_its_error_is_shown(storm, capsys):
    print(storm.memory, storm.memory.error, storm.memory.trace, storm.exp.runs)

    gc.collect()

    assert "OutOfMemoryError" in capsys.readouterr().out
    assert held and [reference() for reference in held] == [None] * len(held)


@pytest.mark.slow
def test_after_failures_training_goes_on_in_the_same_process(storm, undisturbed):
    clone = storm.exp.clone(1).wait(60)

    storm.exp.wait(60)

    run = storm.exp.run(clone.run_id)
    assert run.status == "completed", run.trace
    assert_same(sliced(run), undisturbed["dropout"], "cloned after failures")


# ----------------------------------------------------------------- runs that cells may have touched


def beside(meeting, action=lambda: None):
    """Run a cell that may draw while a run's thread is in the middle of something."""

    def run_cell():
        isolation.cells.begin(DRAWS)
        try:
            action()
        finally:
            isolation.cells.finish()

    meeting.act(run_cell)


def test_a_cell_beside_a_step_marks_a_run_that_draws_and_no_other(experiment, undisturbed):
    exp = experiment()
    draws, first = met("on_step_begin", 2, model=DROPOUT)
    quiet, second = met("on_step_begin", 2)

    fit(exp, [draws, quiet, config(DROPOUT)])
    for meeting in (first, second):
        beside(meeting, lambda: torch.manual_seed(999))
    exp.wait(60)

    assert repr(exp.run(1).exact) == (
        "not exact: a cell ran beside step 3 and may have drawn from its random stream; "
        'use isolation="cells" to prevent that'
    )
    assert exp.run(2).exact and exp.run(3).exact
    assert_same(sliced(exp.run(2)), undisturbed["quiet"])
    assert_same(sliced(exp.run(3)), undisturbed["dropout"])


class Jitter:
    """A collator that draws: it changes the order of the rows of a batch."""

    def __init__(self):
        from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

        self.inner = DataCollatorForLanguageModeling(0)

    def __call__(self, rows):
        return self.inner([rows[i] for i in torch.randperm(len(rows)).tolist()])


def test_a_cell_beside_a_step_marks_a_run_whose_batches_are_drawn(experiment):
    exp = experiment()
    jittery, meeting = met("on_step_begin", 2, model={"data_collator": Jitter()})

    fit(exp, jittery)
    beside(meeting, lambda: torch.manual_seed(999))
    exp.wait(60)

    assert exp.run(1).status == "completed" and not exp.run(1).exact


def test_an_op_of_a_held_cell_waits_for_its_end_and_leaves_the_cells_stream_alone(experiment):
    exp = experiment()
    fit(
        exp,
        [config(DROPOUT, num_train_epochs=200), config(num_train_epochs=200)],
        isolation="cells",
    )
    until(exp, lambda: exp.run(1).facts.step > 0 and exp.run(2).facts.step > 0, 60)

    isolation.cells.begin(DRAWS)
    torch.manual_seed(5)
    stopped = [exp.stop(1), exp.stop(2), exp.clone(1)]
    drawn = torch.rand(3)
    while_held = [handle.status for handle in stopped]
    isolation.cells.finish()
    for handle in stopped:
        handle.wait(30)
    isolation.cells.begin(DRAWS)
    third = exp.stop(3).wait(30)  # waiting lets training go on, and the op act
    isolation.cells.finish()

    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3))
    assert while_held == ["pending"] * 3
    assert third.status == "applied" and all(run.exact for run in exp.runs)


def test_a_cell_beside_the_first_draw_of_an_adapter_marks_its_run(experiment, monkeypatch):
    meeting, initialise = Meeting(), torch.nn.init.kaiming_uniform_

    def initialise_slowly(weight, **how):
        if weight.shape[0] == 4 and not meeting.is_over:
            meeting()
        return initialise(weight, **how)

    monkeypatch.setattr(torch.nn.init, "kaiming_uniform_", initialise_slowly)
    exp = experiment()

    fit(exp, [config(), config(seed=7)])
    beside(meeting, lambda: torch.manual_seed(999))
    exp.wait(60)

    assert [bool(run.exact) for run in exp.runs] == [False, True]


def test_a_cell_beside_a_step_is_remembered_when_its_evaluation_is_parked_in(experiment):
    exp = experiment()
    meeting, asked = Meeting(), []

    def ask():
        if not asked:
            asked.append(exp.boost(1, 2))

    evaluates = config(DROPOUT, eval_strategy="steps", eval_steps=3)
    callbacks = [
        calling("on_step_begin", {2: meeting}),
        calling("on_prediction_step", {3: ask}),
    ]
    exp.run_fit(evaluates.copy(callbacks=callbacks), tiny.create_model, ROWS, ROWS, num_chunks=1)
    beside(meeting)
    exp.wait(60)

    assert exp.run(1).status == "completed" and asked[0].status == "applied"
    assert not exp.run(1).exact


def test_a_hold_in_a_chunk_evaluation_takes_effect_at_the_next_batch(experiment, monkeypatch):
    exp, turn, told, batches = experiment(), engine().turn, [], []
    asked, predict, interrupt = threading.Event(), SFTTrainer.prediction_step, turn.interrupt

    def prediction_step(*args, **kwargs):
        batches.append(len(batches) + 1)
        if batches[-1] == 2:
            threading.Thread(target=lambda: told.append(turn.hold(60))).start()
            assert asked.wait(60)
        elif batches[-1] == 4:
            told.append("evaluated on")
        return predict(*args, **kwargs)

    def interrupting():
        interrupt()
        if batches:
            asked.set()

    monkeypatch.setattr(SFTTrainer, "prediction_step", prediction_step)
    monkeypatch.setattr(turn, "interrupt", interrupting)

    exp.run_fit(
        config(per_device_eval_batch_size=1), tiny.create_model, ROWS, ROWS[:8], num_chunks=1
    )
    until(exp, lambda: bool(told), 60)
    held = len(batches)
    turn.release()
    exp.wait(60)

    assert told[0] is True and held in (2, 3)
    assert exp.run(1).status == "completed" and len(batches) == 8


def test_threads_that_a_run_started_are_the_users_after_its_end(experiment, capsys):
    pools = []

    def metrics(prediction):
        if not pools:
            pools.append(ThreadPoolExecutor(1))
            pools[0].submit(print, "in the run").result(30)
        return {"own": 1.0}

    exp = experiment()
    exp.run_fit(config().copy(compute_metrics=metrics),
                tiny.create_model, ROWS, ROWS, num_chunks=1, block=True)  # fmt: skip

    pools[0].submit(print, "after the run").result(30)
    pools[0].shutdown()

    shown = capsys.readouterr().out
    assert "after the run" in shown and "in the run" not in shown
    assert "in the run" in (exp.folder / "runs" / "1" / "train.log").read_text()


def test_a_default_dtype_that_was_set_beside_a_step_marks_its_run(experiment, settings):
    exp = experiment()
    hooked, meeting = met("on_step_begin", 2)

    fit(exp, [hooked, config(seed=7)])
    meeting.act(
        lambda: (torch.set_default_dtype(torch.float64), torch.set_default_dtype(torch.float32))
    )
    exp.wait(60)

    assert "default dtype" in repr(exp.run(1).exact)
    assert exp.run(2).exact


# -------------------------------------------------------------------- which cells may touch a run


@pytest.fixture
def cells():
    """Cells of no shell yet."""
    return isolation.Cells()


def test_a_cell_overlaps_what_it_ran_beside_and_nothing_else(cells):
    before = cells.token()
    cells.begin(DRAWS)
    within = cells.token()
    assert cells.overlapped(before) and cells.overlapped(within)

    cells.finish()
    after = cells.token()

    assert cells.overlapped(before)
    assert cells.overlapped(within)  # began before it, ended after it
    assert not cells.overlapped(after)


def test_a_harmless_cell_overlaps_nothing(cells):
    token = cells.token()

    cells.begin(cell("print('hello')"))
    beside = cells.overlapped(token)
    cells.finish()

    assert not beside and not cells.overlapped(token)


def test_a_cell_that_waits_touches_nothing_until_it_goes_on(cells):
    cells.begin(DRAWS)

    with cells.waiting():
        waiting = cells.token()
        assert not cells.overlapped(waiting)
    on = cells.token()

    assert cells.overlapped(waiting) and cells.overlapped(on)
    cells.finish()
    assert not cells.overlapped(cells.token())


def test_waiting_outside_of_cells_and_in_other_threads_is_no_cell(cells):
    with cells.waiting():
        pass
    assert not cells.overlapped(cells.token())
    cells.begin(DRAWS)

    def wait():
        with cells.waiting():
            pass

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    cells.finish()

    assert not cells.overlapped(cells.token())


def test_a_cell_within_a_cell_ends_without_ending_the_outer_one(cells):
    cells.begin(DRAWS)
    cells.begin(cell("print(1)"))
    cells.finish()

    token = cells.token()

    assert cells.overlapped(token)
    cells.finish()
    assert not cells.overlapped(cells.token())


class Trainer:
    """Stands for the engine: what it was asked, and whether it can hold."""

    def __init__(self, holds=True):
        self.asked, self.holds, self.released = [], holds, threading.Event()

    def hold(self, timeout):
        self.asked.append("hold")
        self.released.clear()
        if isinstance(self.holds, BaseException):
            raise self.holds
        return self.holds

    def release(self):
        self.asked.append("release")
        self.released.set()


def test_training_is_held_for_a_cell_and_released_after_it(cells):
    trainer = Trainer()
    cells.pause_training(trainer.hold, trainer.release)
    token = cells.token()

    cells.begin(DRAWS)
    held = list(trainer.asked)
    cells.finish()

    assert held == ["hold"] and trainer.released.is_set()
    assert not cells.overlapped(token)


def test_a_held_cell_that_waits_lets_training_go_on_and_is_held_for_again(cells):
    trainer = Trainer()
    cells.pause_training(trainer.hold, trainer.release)
    token = cells.token()
    cells.begin(DRAWS)

    with cells.waiting():
        assert trainer.released.is_set()
    again = trainer.released.is_set()
    cells.finish()

    assert not again and trainer.released.is_set()
    assert not cells.overlapped(token)


def test_training_is_held_for_the_cell_that_asks_for_it_and_no_more_when_that_is_over(cells):
    trainer = Trainer()
    cells.begin(DRAWS)
    token = cells.token()

    cells.pause_training(trainer.hold, trainer.release)
    held = trainer.asked[-1]
    cells.pause_training(None, None)
    loose = cells.overlapped(token)
    cells.finish()
    cells.begin(DRAWS)
    cells.finish()

    assert held == "hold" and loose and trainer.released.is_set()
    assert trainer.asked.count("hold") == 1


def test_a_long_cell_is_held_for_no_longer_than_two_seconds_and_then_told_of(cells, monkeypatch):
    monkeypatch.setattr(isolation, "HOLD_SECONDS", 0.01)
    trainer = Trainer()
    cells.pause_training(trainer.hold, trainer.release)
    token = cells.token()

    cells.begin(DRAWS)
    released = trainer.released.wait(60)

    assert released and cells.overlapped(token)
    cells.finish()
    assert not cells.overlapped(cells.token())


@pytest.mark.parametrize("holds", [False, KeyboardInterrupt()])
def test_a_cell_that_training_could_not_be_held_for_is_told_of(cells, holds):
    trainer = Trainer(holds)
    cells.pause_training(trainer.hold, trainer.release)
    token = cells.token()

    with contextlib.suppress(KeyboardInterrupt):
        cells.begin(DRAWS)

    assert trainer.released.is_set() and cells.overlapped(token)
    cells.finish()
    assert not cells.overlapped(cells.token())


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    import pandas as pd

    exp = Experiment("names", root=tmp_path_factory.mktemp("names"))
    yield {
        "exp": exp,
        "Experiment": Experiment,
        "RFModelConfig": RFModelConfig,
        "rapidfire_jupyter": sys.modules["rapidfire_jupyter"],
        "torch": torch,
        "np": np,
        "rows": [{"prompt": "a"}],
        "table": pd.DataFrame({"loss": [1.0]}),
        "loader": torch.utils.data.DataLoader([1, 2], shuffle=True),
        "model": torch.nn.Dropout(),
        "make": lambda: torch.rand(1),
        "exit": ExitAutocall(),
    }
    exp.end()


HARMLESS = [
    "",
    "exp",
    "exp.runs",
    "exp.runs[0].history",
    "x = 1 + 2",
    "print(exp.status)",
    "display(exp.runs)",
    "exp.stop(1); exp.resume(1).wait()",
    "exp.runs[0].stop()",
    "exp.clone(1, {'learning_rate': 1e-3}, warm=True)",
    "handle = exp.stop(1)\nhandle.wait(10)",
    "exp.wait()",
    "for run in exp.runs:\n    print(run.id, run.rows[-1]['loss'])",
    "{run.id: run.rows[-1] for run in exp.runs}",
    "best = exp.best('loss')\nprint(best.name)",
    "exp.results().sort_values('loss').tail(3)",
    "table.describe()",
    "sorted(exp.runs, key=lambda run: run.name)[0]",
    "rows.append({'prompt': 'b'})\nlen(rows)",
    "other = Experiment('other')\nother.run_fit(RFModelConfig('tiny'), make, rows)",
    "from rapidfire_jupyter import List\nRFModelConfig('tiny', seed=List([1, 2]))",
    "rapidfire_jupyter.Experiment('other').runs",
    "def create_model(config):\n    return torch.rand(3), None",
    "%rapidfire status",
    "handle = %rapidfire stop 1",
    "if rows:\n    %rapidfire stop 1",
    "%%rapidfire run\nexperiment: x",
    "%load_ext rapidfire",
    "%%time\nexp.wait()",
    "from time import sleep\nwhile exp.status == 'running':\n    sleep(1)",
    "import time, math as m\ntime.sleep(m.floor(1.5))",
    "exp?",
    "!ls",
    "exit()",
]
DRAWING = [
    "torch.rand(3)",
    "torch.manual_seed(1)",
    "np.random.seed(1)",
    "import numpy",
    "from random import random",
    "make()",
    "print(torch.rand(3))",
    "exp.stop(torch.randint(3, ()))",
    "for batch in loader:\n    pass",
    "[batch for batch in loader]",
    "list(loader)",
    "next(iter(loader))",
    "loader[0]",
    "exp.best('loss').load_model()",
    "exp.results().sample(3)",
    "table.sample(3)",
    "table.apply(make)",
    "sorted(rows, key=make)",
    "exp = torch\nexp.rand(3)",
    "print = torch.rand\nprint(3)",
    "with torch.no_grad():\n    pass",
    "torch.backends.cudnn.benchmark = True",
    "%%time\ntorch.rand(3)",
    "%run other.py",
    "%timeit 1",
    "import time, random\nrandom.random()",
    "from os import urandom\nurandom(3)",
    "@make\ndef f():\n    pass",
    "def f(x=make()):\n    pass",
    "await make()",
    "this is no python",
]


@pytest.mark.parametrize("source", HARMLESS)
def test_cells_that_use_our_api_print_or_look_are_harmless(names, source):
    assert cell_source.is_harmless(source, names)


@pytest.mark.parametrize("source", DRAWING)
def test_cells_that_call_anything_else_may_draw(names, source):
    assert not cell_source.is_harmless(source, names)


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """An IPython shell that leaves this process's modules and the user's history alone."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    return InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))


def test_the_cells_of_a_shell_are_followed(cells, shell):
    overlaps = []
    shell.user_ns |= {"look": lambda: overlaps.append(cells.overlapped(start))}
    cells.watch(shell)
    cells.watch(shell)
    start = cells.token()

    shell.run_cell("x = 1")
    after_harmless = cells.overlapped(start)
    shell.run_cell("look()")
    shell.run_cell("look(); 1 / 0")
    end = cells.token()

    assert not after_harmless and overlaps == [True, True]
    assert not cells.overlapped(end)


@pytest.mark.parametrize(
    ("source", "counts"),
    [
        ("make()\nbegin()", False),
        ("make()\nbegin()\nx = 1", False),
        ("make()\nbegin()\nmake()", True),
        ("make(); begin(); make()", True),
        ("if True:\n    begin()", False),
        ("if True:\n    make()\n    begin()", True),
        ("begin_and_more()", True),
        ("%time begin()", False),
    ],
)
def test_the_cell_in_which_training_starts_counts_from_there_on(cells, shell, source, counts):
    before, after = [], []

    def make():
        before.append(cells.overlapped(cells.token()))

    def begin():
        cells.watch(shell)
        after.append(cells.overlapped(cells.token()))

    shell.user_ns |= {"make": make, "begin": _as_ours(begin), "begin_and_more": lambda: begin()}
    shell.run_cell(source).raise_error()
    shell.run_cell(source).raise_error()
    end = cells.token()

    assert after == [counts] * 2
    assert before[:1] in ([], [False])  # not followed yet
    assert not cells.overlapped(end)


def _as_ours(function):
    """The function, as if it were defined in the package."""
    names = function.__globals__ | {"__name__": "rapidfire_jupyter.experiment"}
    return type(function)(function.__code__, names, None, None, function.__closure__)


def test_rest_of_cell_is_none_outside_of_cells():
    assert isolation.rest_of_cell({}) is None


def test_another_shell_is_followed_in_place_of_the_first(cells, shell):
    cells.watch(InteractiveShell(config=Config({"HistoryManager": {"enabled": False}})))
    cells.watch(shell)
    token = cells.token()

    shell.run_cell("import random")

    assert cells.overlapped(token) and not cells.overlapped(cells.token())
