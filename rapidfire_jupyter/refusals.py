"""What is refused in the cell: configs that no trainer takes, and data that it cannot train on.

Any: data sets as `run_fit` takes them, PEFT's and TRL's objects.
"""

import io
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rapidfire_jupyter import conflicts
from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.data import tasks
from rapidfire_jupyter.data.check import check_data, sizes
from rapidfire_jupyter.data.formatting import first_rows
from rapidfire_jupyter.data.mapping import chat_template
from rapidfire_jupyter.errors import ConfigError, DataError
from rapidfire_jupyter.request import Request
from rapidfire_jupyter.training import adapters, context, models, prepared, trainers
from rapidfire_jupyter.training.metrics import judges_texts

TRIED_ROWS = 20  # on which a formatting_func is tried before training


def check_configs(
    configs: list[RunConfig],
    request: Request,
    train: Any,
    evaluation: Any,
    mixture: tasks.Mixture | None,
    folder: Path,
) -> None:
    """Build what can be built of each config without a model, and refuse what no trainer takes.

    Raises:
        ConfigError: With the number of the run, the rule, the value and the fix.
    """
    trainers.check_vllm(configs)
    for number, config in enumerate(configs, start=1):
        _check_config(number, config, request, train, folder)
    _check_process_wide(configs)
    _check_tasks(configs, mixture, evaluation)


def _check_config(
    number: int, config: RunConfig, request: Request, train: Any, folder: Path
) -> None:
    """Build what can be built without a model, in the cell, with accelerate's state kept apart."""
    context.bind(context.RunContext(io.StringIO()))
    try:
        args = trainers.training_arguments(config, request.seed, str(folder))
        adapter = trainers.peft_object(config)
        adapters.refuse_untrainable(config, adapter, request.create_model is None)
        conflicts.check_together(config)
    except ConfigError as error:
        raise ConfigError(f"run {number}: {error}") from error
    except (ValueError, TypeError, ImportError) as error:
        raise ConfigError(f"run {number}: the PEFT config is refused: {error}") from error
    finally:
        context.bind(None)
    on_cpu = not torch.accelerator.is_available()
    if args.fp16 and on_cpu:
        raise ConfigError(f"run {number}: fp16=True needs a GPU, found none; use bf16=True")
    if args.torch_compile and args.torch_compile_backend == "inductor" and on_cpu:
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


def check_datasets(
    configs: list[RunConfig], train: Any, evaluation: Any, create_model: Any
) -> list[str]:
    """Refuse data that a config's trainer cannot train on; gives what to tell of it, in lines.

    A formatting_func is tried on the first rows.

    Raises:
        DataError: With the rows, the rule and the fix.
    """
    sets = train, evaluation
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
    _check_streams(*sets)
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
