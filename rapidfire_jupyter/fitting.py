"""`run_fit`: check everything in the cell, then start or attach to training.

Whatever is wrong with configs, data or arguments is raised here, before any thread starts. What is
stored is compared with what is asked, so a notebook that runs again goes on with the same runs.
"""

import io
import json
import math
import os
import platform
import shutil
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch

from rapidfire_jupyter import folders, isolation, notebook, storage
from rapidfire_jupyter.changes import modify
from rapidfire_jupyter.config import RunConfig, differences, flatten
from rapidfire_jupyter.data import tasks
from rapidfire_jupyter.data.balance import Balance, Strategy, balanced
from rapidfire_jupyter.data.check import check_data, sizes
from rapidfire_jupyter.data.formatting import first_rows
from rapidfire_jupyter.data.mapping import chat_template
from rapidfire_jupyter.data.plan import make_plan
from rapidfire_jupyter.data.sets import as_dataset, fingerprint
from rapidfire_jupyter.encoding import decode, encode
from rapidfire_jupyter.engine import Engine, engine
from rapidfire_jupyter.errors import ConfigError, DataError, ExperimentError
from rapidfire_jupyter.events import EventLog
from rapidfire_jupyter.executors.local import LocalExecutor
from rapidfire_jupyter.fit import Fit, Pace
from rapidfire_jupyter.mixture import WEIGHTS, at_start
from rapidfire_jupyter.operations import with_weights
from rapidfire_jupyter.oversight import Oversight
from rapidfire_jupyter.search import as_search, batch_note, mixed
from rapidfire_jupyter.state import State
from rapidfire_jupyter.suggestions import RFOptuna
from rapidfire_jupyter.training import (
    adapters,
    context,
    models,
    prepared,
    process,
    relief,
    requirements,
    trainers,
)
from rapidfire_jupyter.training import budget as budgets
from rapidfire_jupyter.training.metrics import judges_texts

EXIT_SECONDS = 3.5
CHUNKS = "chunks.json"  # in the experiment folder: the balance of its chunks
TRIED_ROWS = 20  # on which a formatting_func is tried before training
_VERSIONED = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")


@dataclass(frozen=True)
class Request:
    """The arguments of `run_fit`, as given. Any: see there."""

    config_group: Any
    create_model: Any
    train: Any
    eval: Any
    num_chunks: int | None
    chunk_size: int | None
    seed: int
    trainer_type: str | type | None
    slice_steps: int | None
    slice_seconds: float | None
    checkpoint_seconds: float
    keep_checkpoints: int
    eval_rows: int
    generate_rows: int
    max_new_tokens: int
    eval_budget: float
    isolation: str
    weight: float
    oversight: Oversight
    strategy: Any
    stratify: str | None
    memory: str | None = None
    device_memory: int | str | None = None
    host_memory: int | str | None = None


def start(
    name: str, folder: Path, log: EventLog, state: State, live: Fit | None, request: Request
) -> Fit:
    """Check a request and train it, or attach to what is there.

    Raises:
        ConfigError: A configuration or argument cannot be used.
        DataError: A data set cannot be trained on.
        ExperimentError: The experiment was made with something else.
    """
    _check_numbers(request)
    budget = _budget(request)
    process.install()
    search = as_search(request.config_group, request.trainer_type)
    mixture = request.train if isinstance(request.train, tasks.Mixture) else None
    if mixture is not None:
        search = mixed(search, {"tasks": list(mixture.tasks), "weights": mixture.weights})
    configs = _relieved(search.runs(), request)
    train = as_dataset(request.train, "train_dataset") if mixture is None else mixture.rows
    evaluation = None if request.eval is None else tasks.eval_sets(request.eval)
    create_model = request.create_model or models.default_create_model
    if not callable(create_model):
        raise ConfigError(
            "create_model_fn must be a function (model_config) -> (model, tokenizer), got "
            f"{create_model!r}"
        )
    trainers.check_vllm(configs)
    for number, config in enumerate(configs, start=1):
        _check_config(number, config, request, train, folder)
    _check_process_wide(configs)
    _check_tasks(configs, mixture, evaluation)
    limit = None if budget is None else budget.device_bytes
    requirements.check_all(configs, create_model, limit, request.memory == "auto")
    findings = _check_data(configs, train, evaluation, create_model)
    _check_streams(train, evaluation)
    facts = _facts(request, train, evaluation, create_model)
    plan, notes = _plan(request, configs, train)
    plan, chunks = _balanced(request, plan, train, mixture)
    for number, config in enumerate(configs, start=1):
        try:
            trainers.check_length(config, plan)
        except ConfigError as error:
            raise ConfigError(f"run {number}: {error}") from error
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
            _check_same(name, state, facts, configs)
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
        for note in filter(None, (*notes, *_uneven(chunks))):
            print(note)
        if chunks is not None:
            storage.write_json(folder / CHUNKS, chunks.to_dict())
        storage.write_json(
            folder / "experiment.json", {"name": name, **facts, "versions": _versions()}
        )
        log.append("fit_started", sync=True, fit=facts, runs=_specs(configs))
    else:
        _attach(fit, log)
        _tell_if_paused(fit.state)
    if trainers_on_cpu():
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


def trainers_on_cpu() -> bool:
    """Whether there is no accelerator to train on."""
    return not torch.accelerator.is_available()


def _check_numbers(request: Request) -> None:
    whole = {
        "seed": (request.seed, 0),
        "slice_steps": (request.slice_steps, 1),
        "keep_checkpoints": (request.keep_checkpoints, 1),
        "eval_rows": (request.eval_rows, 0),
        "generate_rows": (request.generate_rows, 0),
        "max_new_tokens": (request.max_new_tokens, 1),
    }
    for name, (value, least) in whole.items():
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or value < least
        ):
            raise ConfigError(f"{name} must be a whole number >= {least}, got {value!r}")
    positive = {
        "slice_seconds": request.slice_seconds,
        "checkpoint_seconds": request.checkpoint_seconds,
        "eval_budget": request.eval_budget,
        "weight": request.weight,
    }
    for name, number in positive.items():
        good = isinstance(number, int | float) and not isinstance(number, bool)
        if number is not None and not (good and math.isfinite(number) and number > 0):
            raise ConfigError(f"{name} must be a number over 0, got {number!r}")
    if request.seed >= 2**32:
        raise ConfigError(f"seed must be less than 2**32 (numpy's limit), got {request.seed}")
    if request.isolation not in ("mark", "cells"):
        raise ConfigError(f'isolation must be "mark" or "cells", got {request.isolation!r}')


def _relieved(configs: list[RunConfig], request: Request) -> list[RunConfig]:
    """The configs with what `memory="level1"` to "level3" stand for."""
    level = request.memory
    if level is None or level == "auto":
        return configs
    if level not in relief.LEVELS:
        known = ", ".join(map(repr, ("auto", *relief.LEVELS)))
        raise ConfigError(f"memory must be one of {known} or None, got {level!r}")
    have = relief.means(request.create_model is None, True)
    return [relief.at_level(config, level, have) for config in configs]


def _budget(request: Request) -> budgets.Budget | None:
    if request.device_memory is None:
        if request.host_memory is not None:
            raise ConfigError("host_memory is for what device_memory has no room for; give both")
        return None
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    return budgets.budget(request.device_memory, request.host_memory, device)


def _check_config(
    number: int, config: RunConfig, request: Request, train: Any, folder: Path
) -> None:
    """Build what can be built without a model, in the cell, with accelerate's state kept apart."""
    context.bind(context.RunContext(io.StringIO()))
    try:
        args = trainers.training_arguments(config, request.seed, str(folder))
        adapter = trainers.peft_object(config)
        adapters.refuse_untrainable(config, adapter, request.create_model is None)
    except ConfigError as error:
        raise ConfigError(f"run {number}: {error}") from error
    except (ValueError, TypeError, ImportError) as error:
        raise ConfigError(f"run {number}: the PEFT config is refused: {error}") from error
    finally:
        context.bind(None)
    if args.fp16 and trainers_on_cpu():
        raise ConfigError(f"run {number}: fp16=True needs a GPU, found none; use bf16=True")
    if args.torch_compile and args.torch_compile_backend == "inductor" and trainers_on_cpu():
        compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
        if shutil.which(compiler) is None:
            raise ConfigError(
                f"run {number}: torch_compile=True needs a C++ compiler on a CPU, found no "
                f'{compiler}; install it, or use torch_compile_backend="aot_eager"'
            )
    _check_smoothing(number, config, args)
    template = getattr(args, "chat_template_path", None)
    if template and not template.endswith((".jinja", ".j2")):
        raise ConfigError(
            f"run {number}: chat_template_path={template!r} adds tokens to a base that runs share; "
            "call trl.clone_chat_template in create_model_fn, or give a .jinja file"
        )
    if args.max_steps <= 0 and not hasattr(train, "__len__"):
        raise ConfigError(
            f"run {number}: a streaming train_dataset needs max_steps in its training_args"
        )
    wants_eval = trainers.given_args(config).get("eval_strategy", "no") != "no"
    if wants_eval and request.eval is None:
        raise ConfigError(
            f"run {number}: its eval_strategy needs an eval_dataset; give one to run_fit, "
            "or leave eval_strategy out"
        )
    trainer_class, _ = trainers.trainer_classes(config)
    known = trainers.keywords_of(trainer_class)
    for name in config.model.trainer_kwargs or {}:
        if name not in known:
            raise ConfigError(
                f"run {number}: {trainer_class.__name__} has no argument {name!r}; it takes "
                + ", ".join(known)
            )
    if config.model.chat_template is not None:
        try:
            chat_template(config.model.chat_template)
        except DataError as error:
            raise ConfigError(f"run {number}: {error}") from error
    if judges_texts(config.model.compute_metrics) and not (
        request.eval is not None and request.generate_rows
    ):
        raise ConfigError(
            f"run {number}: compute_metrics(predictions, references) judges answers at chunk ends; "
            "give an eval_dataset, and generate_rows over 0"
        )
    for name in ("formatting_func", "compute_metrics", "data_collator"):
        value = getattr(config.model, name)
        if value is not None and not callable(value):
            raise ConfigError(f"run {number}: {name} must be a function, got {value!r}")


def _check_tasks(configs: list[RunConfig], mixture: tasks.Mixture | None, evaluation: Any) -> None:
    """Refuse configs whose trainers cannot mix tasks, or have none, or choose by no metric."""
    for number, config in enumerate(configs, start=1):
        args = trainers.given_args(config)
        if mixture is None and config.trainer.mixed:
            raise ConfigError(
                f'run {number}: trainer_type="{config.trainer.name}" trains on several tasks; give '
                'train_dataset=mix({"support": rows, "code": others}, weights=[0.5, 0.5]), or use '
                'trainer_type="SFT"'
            )
        if mixture is None and config.model.mixture is not None:
            raise ConfigError(
                f"run {number}: mixture= is set by run_fit; give "
                "train_dataset=mix({...}, weights=[...]) instead"
            )
        if mixture is not None and not (
            prepared.follows_plan(config, mixture.rows) and args.get("remove_unused_columns", True)
        ):
            raise ConfigError(
                f"run {number}: a mixture orders the rows itself: use SFT, DPO or Reward without "
                "packing, train_sampling_strategy and remove_unused_columns=False"
            )
        if isinstance(evaluation, dict):
            _check_best_metric(number, args, list(evaluation))
    if mixture is not None:
        mapped = (
            c.trainer.rows
            for c in configs
            if c.model.formatting_func is None and prepared.text_field(c) == "text"
        )
        for kind in dict.fromkeys(filter(None, mapped)):
            tasks.check_layouts(mixture.tasks, kind)


def _check_best_metric(number: int, args: Mapping[str, Any], names: list[str]) -> None:
    """Refuse a metric that TRL does not have where there are several eval sets."""
    plateau = args.get("lr_scheduler_type") == "reduce_lr_on_plateau"
    chooses = plateau or args.get("load_best_model_at_end") or args.get("metric_for_best_model")
    metric = str(args.get("metric_for_best_model") or "loss")
    metric = metric if metric.startswith("eval_") else f"eval_{metric}"
    if chooses and not any(metric.startswith(f"eval_{name}_") for name in names):
        known = " or ".join(f'"eval_{name}_loss"' for name in names)
        raise ConfigError(
            f"run {number}: TRL chooses by the metric of one eval set, got {metric}; give "
            f"metric_for_best_model={known}"
        )


def _check_smoothing(number: int, config: RunConfig, args: Any) -> None:
    """Refuse label smoothing where TRL's loss would pass over it in silence."""
    given, kind = args.label_smoothing_factor, config.trainer
    if not given or kind.cls is not None:
        return
    if kind.rows != "SFT":
        other = "use label_smoothing" if kind.rows == "DPO" else "leave it out"
        raise ConfigError(
            f"run {number}: label_smoothing_factor={given} is not used by TRL's loss for "
            f"{kind.name}; {other}"
        )
    if args.loss_type != "nll":
        raise ConfigError(
            f"run {number}: label_smoothing_factor={given} is not used with "
            f"loss_type={args.loss_type!r}; use loss_type='nll', or leave it out"
        )


def _check_data(
    configs: list[RunConfig], train: Any, evaluation: Any, create_model: Any
) -> list[str]:
    """Refuse data that a config's trainer cannot train on; gives what to tell of it, in lines.

    A formatting_func is tried on the first rows.
    """
    if isinstance(evaluation, dict):
        evaluation = tasks.joined(evaluation)
    told: dict[str, None] = {}
    # Whether the rows are messages. All configs are alive, so ids stay what they are.
    seen: dict[tuple[str | None, int], bool] = {}
    for number, config in enumerate(configs, start=1):
        function = config.model.formatting_func
        kind = config.trainer.rows
        key = kind, id(function)
        if kind is None or prepared.text_field(config) != "text":
            # The user says which column is the text, or no layout is known for the trainer.
            _tried(number, config, train, evaluation)
        elif key not in seen:
            given = _tried(number, config, train, evaluation)
            report = check_data(*given, trainer_type=kind, near_duplicates=False)
            try:
                report.refuse()
            except DataError as error:
                if function is None:
                    raise
                raise DataError(f"run {number}: what its formatting_func gives: {error}") from error
            layout = report.parts[0].layout
            seen[key] = layout is not None and layout.conversational
            if function is None:
                for finding in (*report.warnings, *report.notes):
                    if finding.kind not in ("few_rows", "eval_share"):
                        told[f"data: {finding}"] = None
        if seen.get(key):
            _check_template(number, config, create_model)
    about = "; ".join(map(str, sizes(train, evaluation)))
    return [*([f"data: {about}"] if about else []), *told]


def _check_streams(train: Any, evaluation: Any) -> None:
    """Refuse streams that end with what the check has read: each run reads them from the start."""
    for what, dataset in (("train_dataset", train), ("eval_dataset", evaluation)):
        stream = dataset is not None and not hasattr(dataset, "__len__")
        if stream and next(iter(dataset), None) is None:
            raise DataError(
                f"{what} gave no row when it was read again, but each run reads it from the "
                "start; make it with IterableDataset.from_generator(function)"
            )


def _tried(number: int, config: RunConfig, train: Any, evaluation: Any) -> list[Any]:
    """The data sets; if the config has a formatting_func, what that gives for their first rows."""
    given = [("train_dataset", train), ("eval_dataset", evaluation)]
    if config.model.formatting_func is None:
        return [dataset for _, dataset in given]
    try:
        return [
            None
            if dataset is None
            else prepared.format_set(config, what, first_rows(dataset, TRIED_ROWS))
            for what, dataset in given
        ]
    except DataError as error:
        raise DataError(f"run {number}: {error}") from error


def _check_template(number: int, config: RunConfig, create_model: Any) -> None:
    """Refuse messages without a chat template, where the tokenizer can be had without its model."""
    if create_model is not models.default_create_model:
        return
    try:
        tokenizer = models.default_tokenizer(models.ModelConfig(config))
    except Exception:  # the run that loads it tells what is wrong
        return
    try:
        prepared.check_template(config, tokenizer)
    except DataError as error:
        raise DataError(f"run {number}: {error}") from error


def _check_process_wide(configs: list[RunConfig]) -> None:
    """What torch keeps once per process must be the same for all runs of a kernel."""
    for name in ("tf32", "full_determinism", "use_liger_kernel"):
        values = {trainers.given_args(config).get(name) or False for config in configs}
        if len(values) > 1:
            raise ConfigError(
                f"{name} is one setting for the whole process, got several values; give all "
                "configurations the same, or use a second experiment in another kernel"
            )
    compiling = ("torch_compile", "torch_compile_backend", "torch_compile_mode")
    if any(trainers.given_args(c).get(name) for c in configs for name in compiling):
        import torch._dynamo

        limit = 8 + len(configs)  # each skeleton is compiled anew; past the limit nothing is
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, limit)


def _plan(request: Request, configs: list[RunConfig], train: Any) -> tuple[Any, list[str]]:
    """The chunk plan; fewer chunks than asked where one would hold less than a step of a run."""
    if not hasattr(train, "__len__"):
        if request.chunk_size is not None:
            raise ConfigError("chunk_size needs a train_dataset with a length; give num_chunks")
        note = "a stream: chunks are shares of steps, so runs of other batch sizes meet other rows"
        several = len(set(map(_rows_per_step, configs))) > 1
        plan = make_plan(1 << 20, request.seed, request.num_chunks, None)
        return plan, [f"data: train: {note}"] * several
    rows = len(train)
    plan = make_plan(rows, request.seed, request.num_chunks, request.chunk_size)
    asked = request.num_chunks or plan.num_chunks
    steps = min(math.ceil(rows / _rows_per_step(c)) for c in configs)
    if asked <= steps:
        return plan, []
    largest = max(_rows_per_step(c) for c in configs)
    note = (
        f"num_chunks={asked}: an epoch of {rows} rows has only {steps} optimizer "
        f"step{'s' if steps != 1 else ''} of {largest} rows, so it is cut into {steps}"
    )
    return make_plan(rows, request.seed, steps, None), [note]


def _balanced(
    request: Request, plan: Any, train: Any, mixture: tasks.Mixture | None
) -> tuple[Any, Balance | None]:
    """The plan in the order asked for, and how alike its chunks are.

    A stream has no such order, and in a mixture each run has its own.
    """
    if request.strategy not in get_args(Strategy):
        raise ConfigError(
            f"strategy must be one of {', '.join(get_args(Strategy))}, got {request.strategy!r}"
        )
    if mixture is not None:
        if request.strategy != "shuffle":
            raise ConfigError(
                f"strategy={request.strategy!r} orders one data set; a mixture's order is given "
                "by its weights; leave strategy out"
            )
        return replace(plan, tasks=mixture.sizes), None
    if request.strategy == "shuffle" and request.stratify is not None:
        raise ConfigError(f'stratify={request.stratify!r} needs strategy="stratified" or "auto"')
    if not hasattr(train, "__len__"):
        if request.strategy != "shuffle":
            raise ConfigError(
                f"strategy={request.strategy!r} needs all rows at hand, got a stream; leave it out"
            )
        return plan, None
    return balanced(train, plan, request.strategy, request.stratify)


def _of_adapters(configs: list[RunConfig]) -> list[str]:
    """What to tell of the configs' adapters, each once."""
    told = (adapters.notes(config, trainers.peft_object(config)) for config in configs)
    return list(dict.fromkeys(note for some in told for note in some))


def _uneven(chunks: Balance | None) -> list[str]:
    if chunks is None or not chunks.uneven:
        return []
    numbers = ", ".join(map(str, chunks.uneven[:5])) + ", ..." * (len(chunks.uneven) > 5)
    return [
        f"data: chunks {numbers} differ from the whole by more than chance (see exp.chunks()); "
        'strategy="stratified" evens them out'
    ]


def _rows_per_step(config: RunConfig) -> int:
    args = trainers.given_args(config)
    if config.trainer.rewarded:
        return 1  # its steps are completions; chunks are shares of steps
    return int(args.get("per_device_train_batch_size", 8)) * int(
        args.get("gradient_accumulation_steps", 1)
    )


def _facts(request: Request, train: Any, evaluation: Any, create_model: Any) -> dict[str, Any]:
    mixture = request.train if isinstance(request.train, tasks.Mixture) else None
    sizes = {} if mixture is None else {name: len(one) for name, one in mixture.tasks.items()}
    return {
        **({"tasks": sizes} if sizes else {}),
        "seed": request.seed,
        "num_chunks": request.num_chunks,
        "chunk_size": request.chunk_size,
        "eval_rows": request.eval_rows,
        **_order_facts(request),
        "generate_rows": request.generate_rows,
        "max_new_tokens": request.max_new_tokens,
        "train_rows": len(train) if hasattr(train, "__len__") else None,
        "train_fingerprint": fingerprint(train),
        "eval_fingerprint": tasks.fingerprints(evaluation),
        "create_model": models.source_of(create_model),
    }


def _order_facts(request: Request) -> dict[str, Any]:
    """The order of rows, where it is not plain TRL's."""
    if request.strategy == "shuffle":
        return {}
    return {"strategy": request.strategy, "stratify": request.stratify}


def _specs(configs: list[RunConfig]) -> list[dict[str, Any]]:
    flat = [encode(flatten(config)) for config in configs]
    varying = [
        k for k in sorted({k for f in flat for k in f}) if len({repr(f.get(k)) for f in flat}) > 1
    ]
    return [
        {
            "id": number,
            "name": config.model.name or _label(flat[number - 1], varying) or f"run {number}",
            "trainer_type": config.trainer.name,
            "config": flat[number - 1],
        }
        for number, config in enumerate(configs, start=1)
    ]


def _label(config: Mapping[str, Any], varying: list[str]) -> str:
    parts = []
    for key in varying:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, dict):
            value = value.get("callable", value.get("object", "..."))
        if isinstance(value, float):
            value = f"{value:.4g}"
        text = "+".join(map(str, value)) if isinstance(value, list) else str(value)
        parts.append(f"{key.rpartition('.')[2]}={text}")
    return " ".join(parts)[:120]


def _check_same(
    name: str, state: State, facts: Mapping[str, Any], configs: list[RunConfig]
) -> None:
    """Refuse other configurations or data under the same name; warn of functions that changed."""
    assert state.fit is not None
    changed = {k: v for k, v in differences(state.fit, facts).items() if k != "create_model"}
    ways = f"give the first ones again, use another name than {name!r}, or delete its folder"
    if changed:
        key, (old, new) = next(iter(changed.items()))
        raise ExperimentError(
            f"experiment {name!r} was made with {key}={old!r}, not {new!r}; {ways}"
        )
    grid = [run for run in state.runs.values() if run.parent is None]
    if len(grid) != len(configs):
        raise ExperimentError(
            f"experiment {name!r} has {len(grid)} configurations, not {len(configs)}; {ways}"
        )
    redefined = {"create_model_fn"} if state.fit["create_model"] != facts["create_model"] else set()
    for run, config in zip(grid, configs, strict=True):
        for key, (old, new) in differences(_as_begun(run.config), encode(flatten(config))).items():
            if _is_code(old) and _is_code(new):
                redefined.add(key)
            elif not _was_extended(key) and key not in run.adjusted:
                raise ExperimentError(
                    f"run {run.id} of experiment {name!r} has {key}={old!r}, not {new!r}; {ways}"
                )
    for key in sorted(redefined):
        print(f"note: {key} has changed since {name!r} began; its runs go on with the new one")


def _as_begun(config: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded config with the weights of its mixture before any op changed them."""
    weights = config.get(WEIGHTS)
    return {**config, WEIGHTS: at_start(weights)} if weights else dict(config)


def _was_extended(key: str) -> bool:
    return key in ("training_args.num_train_epochs", "training_args.max_steps")


def _is_code(value: object) -> bool:
    return isinstance(value, dict) and ("callable" in value or "object" in value)


def _attach(fit: Fit, log: EventLog) -> None:
    """Go on with a recorded experiment in this kernel: configs of clones again, status of runs."""
    stored = json.loads((fit.folder / "experiment.json").read_text(encoding="utf-8"))
    for event in list(log.events):
        data = event.data
        if event.kind == "run_adjusted" and event.run in fit.configs:
            changes = {k: decode(v, k) for k, v in data["changes"].items()}
            fit.configs[event.run] = modify(fit.configs[event.run], changes)
        if event.kind != "op" or data["outcome"] != "applied":
            continue
        try:
            if data["kind"] == "clone" and event.run in fit.configs:
                changes = {k: decode(v, k) for k, v in data["args"]["changes"].items()}
                made, clone = data["created"], modify(fit.configs[event.run], changes)
                fit.configs[made["id"]] = with_weights(clone, made["config"])
            elif data["kind"] == "mix" and event.run in fit.configs:
                weights = {WEIGHTS: data["weights"]}
                fit.configs[event.run] = with_weights(fit.configs[event.run], weights)
            elif data["kind"] == "resume" and data["args"] and event.run in fit.configs:
                changes = {k: decode(v, k) for k, v in data["args"].items()}
                fit.configs[event.run] = modify(fit.configs[event.run], changes)
        except ConfigError:
            number = data["created"]["id"] if "created" in data else event.run
            print(
                f"run {number} was cloned with a function: run its clone cell again to let it go on"
            )
    folders.settle_trash(fit.folder, fit.state)
    log.append("attached", sync=True)
    now = _versions()
    moved = {k: v for k, v in differences(stored["versions"], now).items()}
    if moved:
        text = ", ".join(f"{k} {old} -> {new}" for k, (old, new) in moved.items())
        for run in fit.state.runs.values():
            if run.step > 0 and run.status not in ("completed", "deleted"):
                log.append("run_inexact", run.id, reason=f"went on in another environment: {text}")


def _versions() -> dict[str, Any]:
    from importlib.metadata import version

    device = torch.accelerator.current_accelerator()
    return {
        **{name: version(name) for name in _VERSIONED},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": str(device or "cpu"),
        "threads": torch.get_num_threads(),
    }


def _start_engine(fit: Fit, request: Request) -> None:
    runner = engine()
    isolation.cells.watch(notebook.shell())
    if request.isolation == "cells":
        isolation.cells.pause_training(runner.hold, runner.release)
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
