"""`run_fit`: check everything in the cell, then start or attach to training.

Whatever is wrong with configs, data or arguments is raised here, before any thread starts. What is
stored is compared with what is asked, so a notebook that runs again goes on with the same runs.
"""

import shutil
import signal
import threading
from pathlib import Path

import torch

from rapidfire_jupyter import attaching, chunking, isolation, notebook, refusals, storage
from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.data import tasks
from rapidfire_jupyter.data.sets import as_dataset
from rapidfire_jupyter.engine import Engine, engine
from rapidfire_jupyter.errors import ConfigError, ExperimentError
from rapidfire_jupyter.events import EventLog
from rapidfire_jupyter.executors.local import LocalExecutor
from rapidfire_jupyter.fit import Fit, Pace
from rapidfire_jupyter.request import Request, check_numbers, device_budget, relieved
from rapidfire_jupyter.search import as_search, batch_note, mixed
from rapidfire_jupyter.state import State
from rapidfire_jupyter.suggestions import RFOptuna
from rapidfire_jupyter.training import (
    adapters,
    models,
    process,
    requirements,
    trainers,
)

EXIT_SECONDS = 3.5


def start(
    name: str, folder: Path, log: EventLog, state: State, live: Fit | None, request: Request
) -> Fit:
    """Check a request and train it, or attach to what is there.

    Raises:
        ConfigError: A configuration or argument cannot be used.
        DataError: A data set cannot be trained on.
        ExperimentError: The experiment was made with something else.
    """
    check_numbers(request)
    budget = device_budget(request)
    process.install()
    search = as_search(request.config_group, request.trainer_type)
    mixture = request.train if isinstance(request.train, tasks.Mixture) else None
    if mixture is not None:
        search = mixed(search, {"tasks": list(mixture.tasks), "weights": mixture.weights})
    configs = relieved(search.runs(), request)
    train = as_dataset(request.train, "train_dataset") if mixture is None else mixture.rows
    evaluation = None if request.eval is None else tasks.eval_sets(request.eval)
    create_model = request.create_model or models.default_create_model
    if not callable(create_model):
        raise ConfigError(
            "create_model_fn must be a function (model_config) -> (model, tokenizer), got "
            f"{create_model!r}"
        )
    refusals.check_configs(configs, request, train, evaluation, mixture, folder)
    limit = None if budget is None else budget.device_bytes
    requirements.check_all(configs, create_model, limit, request.memory == "auto")
    findings = refusals.check_datasets(configs, train, evaluation, create_model)
    facts = attaching.facts(request, train, evaluation, create_model)
    plan, chunks, notes = chunking.plan(request, configs, train, mixture)
    data = trainers.FitData(
        train,
        evaluation,
        plan,
        request.seed,
        request.eval_rows,
        request.generate_rows,
        request.max_new_tokens,
    )
    fresh = state.fit is None
    try:
        if not fresh:
            attaching.check_same(name, state, facts, configs)
    except ExperimentError:
        if not _nothing_trained(state):
            raise
        if live is not None:
            end(live)
        shutil.rmtree(folder / "runs", ignore_errors=True)
        fresh, live = True, None
    if live is not None and not live.halted:
        _tell_if_paused(state)
        engine().oversee(live, request.oversight)
        return live
    pace = Pace(
        request.slice_steps,
        request.slice_seconds,
        request.checkpoint_seconds,
        evaluation is not None,
        request.isolation == "cells",
        request.eval_budget,
    )
    executor = LocalExecutor(
        folder, data, create_model, request.keep_checkpoints, log.append, budget
    )
    fit = Fit(folder, log, state, dict(enumerate(configs, start=1)), executor, pace, request.weight)
    fit.oversight = request.oversight
    fit.relieve = request.memory == "auto"
    fit.search = search if isinstance(search, RFOptuna) else None
    if fresh:
        print(search.describe())
        notes = [*notes, batch_note(configs), *_of_adapters(configs), *findings]
        for note in filter(None, (*notes, *chunking.uneven(chunks))):
            print(note)
        if chunks is not None:
            storage.write_json(folder / chunking.FILE, chunks.to_dict())
        storage.write_json(
            folder / "experiment.json", {"name": name, **facts, "versions": attaching.versions()}
        )
        log.append("fit_started", sync=True, fit=facts, runs=attaching.specs(configs))
    else:
        attaching.attach(fit, log)
        _tell_if_paused(fit.state)
    if not torch.accelerator.is_available():
        print("no GPU found: training on the CPU (use_cpu=True)")
    _start_engine(fit, request)
    return fit


def _nothing_trained(state: State) -> bool:
    """Whether every run has ended before its first step: a first try that went wrong."""
    ended = ("failed", "stopped", "deleted")
    return all(
        r.status in ended and r.step == 0 and r.checkpoint_step is None for r in state.runs.values()
    )


def _tell_if_paused(state: State) -> None:
    if state.paused:
        print("the experiment is paused; exp.resume_all() lets it train")


def end(fit: Fit) -> None:
    """Save and close an experiment's runs; waits for the step in flight."""
    with isolation.waiting():
        engine().end(fit)


def _of_adapters(configs: list[RunConfig]) -> list[str]:
    """What to tell of the configs' adapters, each once."""
    told = (adapters.notes(config, trainers.peft_object(config)) for config in configs)
    return list(dict.fromkeys(note for some in told for note in some))


def _start_engine(fit: Fit, request: Request) -> None:
    runner = engine()
    isolation.cells.watch(notebook.shell())
    if request.isolation == "cells":
        isolation.cells.pause_training(runner.turn.hold, runner.turn.release)
    elif not runner.is_held_for_cells():
        isolation.cells.pause_training(None, None)
    _flush_at_sigterm(runner)
    runner.add(fit)


def _flush_at_sigterm(runner: Engine) -> None:
    """SIGTERM saves what is parked, then ends the process as it would have."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def handler(number: int, frame: object) -> None:
        runner.shut_down(EXIT_SECONDS)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    signal.signal(signal.SIGTERM, handler)
