"""From a config to one unmodified TRL trainer over a skeleton of the base.

What the engine decides for every run is set here: seeds, output folder, no bars, no NaN filter.
What trainers would do twice (tokenising) is done once and shared. The order of rows is the
chunk plan's.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import Sampler

from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.data.layouts import recognise
from rapidfire_jupyter.data.mapping import to_trl
from rapidfire_jupyter.data.plan import ChunkPlan, chunk_ends, even_ends
from rapidfire_jupyter.encoding import encode
from rapidfire_jupyter.errors import ConfigError, DataError

ROW_COLUMN = "rapidfire_row"
FAR = 10**9  # steps: an interval that never comes
MOST_CHUNKS = 100_000  # in a whole training: each has an end that is logged and kept

# Arguments that cannot change how rows are prepared. Any other argument parts the prepared data.
_NOT_PREPARATION = frozenset(
    [
        "per_device_train_batch_size",
        "per_device_eval_batch_size",
        "num_train_epochs",
        "max_steps",
        "learning_rate",
        "lr_scheduler_type",
        "lr_scheduler_kwargs",
        "warmup_steps",
        "optim",
        "optim_args",
        "weight_decay",
        "adam_beta1",
        "adam_beta2",
        "adam_epsilon",
        "gradient_accumulation_steps",
        "max_grad_norm",
        "bf16",
        "fp16",
        "use_cpu",
        "tf32",
        "gradient_checkpointing",
        "gradient_checkpointing_kwargs",
        "logging_steps",
        "logging_strategy",
        "logging_first_step",
        "eval_steps",
        "eval_strategy",
        "eval_delay",
        "eval_on_start",
        "save_steps",
        "save_strategy",
        "save_total_limit",
        "load_best_model_at_end",
        "metric_for_best_model",
        "greater_is_better",
        "data_seed",
        "neftune_noise_alpha",
        "report_to",
        "run_name",
        "beta",
        "loss_type",
        "label_smoothing_factor",
        "rdrop_alpha",
    ]
)


@dataclass(frozen=True)
class FitData:
    """The user's data sets and how their rows are cut into chunks. Any: datasets.Dataset."""

    train: Any
    eval: Any
    plan: ChunkPlan
    seed: int
    eval_rows: int = 64


@dataclass
class PreparedData:
    """Data sets that a trainer prepared, kept for runs that would prepare the same."""

    kept: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def get(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """The prepared data set for this key; made at the first call."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]


@dataclass(frozen=True)
class Schedule:
    """Steps of a run. `aligned` is False where chunks are shares of steps, not the plan's rows.

    Attributes:
        multiple: A restart is exact only at multiples of this many steps.
        dropped: Rows that the trainer's own preparation dropped (too long, fully masked).
    """

    total_steps: int
    steps_per_epoch: int
    rows_per_step: int
    chunk_ends: tuple[int, ...]
    aligned: bool
    multiple: int
    dropped: int


class PlanSampler(Sampler[int]):
    """Gives a trainer's rows in the plan's order. `epoch` is set by the session."""

    def __init__(self, plan: ChunkPlan, rows: list[int]) -> None:
        self._plan = plan
        self._index = {row: index for index, row in enumerate(rows)}
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        return iter([self._index[r] for r in self._plan.order(self.epoch) if r in self._index])

    def __len__(self) -> int:
        return len(self._index)


def trainer_classes(config: RunConfig) -> tuple[Any, Any]:
    """The trainer and config class of a run: TRL's, or its SFTTrainer with R-Drop."""
    import trl

    kind = config.trainer_type
    trainer_class = getattr(trl, f"{kind}Trainer")
    if own_arguments(config):
        from rapidfire_jupyter.training.rdrop import RDropSFTTrainer

        trainer_class = RDropSFTTrainer
    return trainer_class, getattr(trl, f"{kind}Config")


def own_arguments(config: RunConfig) -> dict[str, Any]:
    """Training arguments that are ours, and so the trainer's: none, or a positive rdrop_alpha."""
    alpha = given_args(config).get("rdrop_alpha", 0.0)
    return {"rdrop_alpha": alpha} if alpha else {}


def run_seed(config: RunConfig, fit_seed: int) -> int:
    """The seed of a run: its config's, else its training arguments', else the fit's."""
    if config.model.seed is not None:
        return int(config.model.seed)
    return int(given_args(config).get("seed", fit_seed))


def given_args(config: RunConfig) -> dict[str, Any]:
    """Training arguments the user gave."""
    return dict(config.model.training_args.given) if config.model.training_args else {}


def argument_values(config: RunConfig, fit_seed: int) -> dict[str, Any]:
    """Keyword arguments of the TRL config, as plain TRL needs them (without an output folder)."""
    args = {k: v for k, v in given_args(config).items() if k != "rdrop_alpha"}
    args["seed"] = run_seed(config, fit_seed)
    args.setdefault("data_seed", fit_seed)
    args.setdefault("report_to", "none")
    args["logging_nan_inf_filter"] = False
    args["disable_tqdm"] = True
    if not torch.accelerator.is_available():
        args["use_cpu"] = True
    # "chunk" points are set by the session; steps this far apart never come by themselves.
    for kind in ("eval", "save"):
        if args.get(f"{kind}_strategy") == "chunk":
            args[f"{kind}_strategy"] = "steps"
            args[f"{kind}_steps"] = FAR
    return args


def training_arguments(config: RunConfig, fit_seed: int, output_dir: str) -> Any:
    """The real TRL config object of a run.

    Raises:
        ConfigError: TRL refuses the arguments; its own words are in the message.
    """
    values = argument_values(config, fit_seed)
    values.pop("save_total_limit", None)
    _, arguments_class = trainer_classes(config)
    try:
        return arguments_class(
            output_dir=output_dir, restore_callback_states_from_checkpoint=True, **values
        )
    except (ValueError, TypeError, ImportError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"{config.trainer_type}Config refuses these arguments: {first}"
        ) from error


def peft_object(config: RunConfig) -> Any:
    """The run's own PEFT config object, or None."""
    peft_config = config.model.peft_config
    if peft_config is None:
        return None
    return peft_config.build() if hasattr(peft_config, "build") else copy.deepcopy(peft_config)


def run_callbacks(config: RunConfig) -> list[Any]:
    """The run's own callbacks: copies of the user's objects, or what the user's factories give."""
    callbacks = config.model.callbacks or []
    return [c() if isinstance(c, type) or _is_factory(c) else copy.deepcopy(c) for c in callbacks]


def build_trainer(
    config: RunConfig,
    skeleton: tuple[Any, Any],
    base_name: str,
    data: FitData,
    prepared: PreparedData,
    output_dir: str,
    compute_metrics: Callable[..., Any] | None,
) -> tuple[Any, list[int] | None]:
    """Build a run's trainer.

    Returns:
        The trainer, and the row numbers it kept in the order of its data set; None where its rows
        are no rows of the user's data set (packing, streams).
    """
    trainer_class, _ = trainer_classes(config)
    args = training_arguments(config, data.seed, output_dir)
    model, tokenizer = skeleton
    key = (config.trainer_type, base_name, _preparation_key(config))
    train, evaluation = formatted(config, data, prepared, tokenizer)
    keywords = {**(config.model.trainer_kwargs or {}), **own_arguments(config)}
    if config.trainer_type == "GRPO":
        keywords["reward_funcs"] = config.model.reward_funcs
    else:
        train = _numbered(train, args, prepared)
        if compute_metrics is not None:
            keywords["compute_metrics"] = compute_metrics
        if config.model.data_collator is not None:
            keywords["data_collator"] = copy.deepcopy(config.model.data_collator)
    if config.trainer_type == "SFT" and wants_text(config, data):
        keywords["formatting_func"] = config.model.formatting_func
        args.completion_only_loss = (
            False if args.completion_only_loss is None else args.completion_only_loss
        )
    trainer = _preparing_once(trainer_class, key, prepared)(
        model=model,
        args=args,
        train_dataset=train,
        eval_dataset=evaluation,
        processing_class=tokenizer,
        callbacks=run_callbacks(config),
        peft_config=peft_object(config),
        **keywords,
    )
    return trainer, _take_row_numbers(trainer, data.plan.rows)


def make_schedule(
    trainer: Any, config: RunConfig, plan: ChunkPlan, rows: list[int] | None
) -> Schedule:
    """Steps and chunk ends of a built trainer; installs the plan's order where rows are rows."""
    args = trainer.args
    plain_order = args.train_sampling_strategy == "random" and config.trainer_type != "GRPO"
    aligned = rows is not None and plain_order
    if aligned and rows is not None:
        sampler = PlanSampler(plan, rows)
        trainer._get_train_sampler = lambda dataset=None: sampler
        trainer.rapidfire_sampler = sampler
    loader = trainer.get_train_dataloader()
    if hasattr(trainer.train_dataset, "__len__") and len(loader) == 0:
        left = len(trainer.train_dataset)
        if left == 0:
            raise DataError(
                f"no rows are left to train on: all {plan.rows} rows were dropped, as too long or "
                "with nothing to learn from; raise max_length"
            )
        raise DataError(
            f"dataloader_drop_last=True leaves no batch: {left} rows are fewer than "
            f"{args.train_batch_size}; use a smaller per_device_train_batch_size"
        )
    _, per_epoch, *_, total = trainer.set_initial_training_values(args, loader)
    trainer.accelerator._dataloaders.clear()
    multiple = 1
    if config.trainer_type == "GRPO":
        every = args.steps_per_generation * args.num_iterations
        multiple = every // math.gcd(every, args.gradient_accumulation_steps)
    rows_per_step = args.train_batch_size * args.gradient_accumulation_steps
    dropped = 0 if rows is None else plan.rows - len(rows)
    if aligned:
        ends = chunk_ends(plan, rows if dropped else None, rows_per_step, per_epoch, total)
    else:
        ends = even_ends(plan.num_chunks, total / per_epoch, total, multiple)
    return Schedule(total, per_epoch, rows_per_step, tuple(ends), aligned, multiple, dropped)


def check_length(config: RunConfig, plan: ChunkPlan) -> None:
    """Refuse a training that never ends.

    Raises:
        ConfigError: It has over 100,000 chunks.
    """
    args = config.model.training_args
    epochs = float(getattr(args, "num_train_epochs", None) or 3.0)
    steps = getattr(args, "max_steps", None) or -1
    if steps > 0:
        rows = (getattr(args, "per_device_train_batch_size", None) or 8) * (
            getattr(args, "gradient_accumulation_steps", None) or 1
        )
        epochs = steps * rows / plan.rows
    chunks = epochs * plan.num_chunks
    if chunks > MOST_CHUNKS:
        raise ConfigError(
            f"{epochs:.3g} epochs of {plan.num_chunks} chunks are over {MOST_CHUNKS:,} chunks; "
            "lower num_train_epochs or max_steps, or num_chunks"
        )


def wind_on_sampler(trainer: Any, epochs: int) -> None:
    """Bring GRPO's sampler to where it is after some epochs; no checkpoint holds its generator."""
    sampler_of = trainer._get_train_sampler

    def wound_on(dataset: Any = None) -> Any:
        sampler = sampler_of(dataset)
        for _ in range(epochs):
            for _ in sampler:
                pass
        return sampler

    trainer._get_train_sampler = wound_on


def _is_factory(callback: Any) -> bool:
    return callable(callback) and not hasattr(callback, "on_train_begin")


def _preparation_key(config: RunConfig) -> str:
    given = {k: v for k, v in given_args(config).items() if k not in _NOT_PREPARATION}
    return repr((encode(given), id(config.model.formatting_func)))


def _preparing_once(trainer_class: Any, key: tuple[Any, ...], prepared: PreparedData) -> Any:
    """The trainer class, with its `_prepare_dataset` done once for runs that share a key."""
    original = getattr(trainer_class, "_prepare_dataset", None)
    if original is None:
        return trainer_class

    def _prepare_dataset(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        part = (*key, repr(args[-1]), id(dataset))
        return prepared.get(part, lambda: original(self, dataset, *args, **kwargs))

    return type(trainer_class.__name__, (trainer_class,), {"_prepare_dataset": _prepare_dataset})


def formatted(
    config: RunConfig, data: FitData, prepared: PreparedData, tokenizer: Any
) -> tuple[Any, Any]:
    """The data sets in TRL's columns, made once: by a formatting_func, else by their layout.

    A formatting_func that gives text is left to TRL.
    """
    function = config.model.formatting_func
    if function is not None and wants_text(config, data):
        return data.train, data.eval
    if function is None:
        return _in_trls_columns(config, data, prepared, tokenizer)

    def make(name: str, dataset: Any) -> Any:
        drop = None if config.trainer_type == "GRPO" else dataset.column_names

        def one(row: dict[str, Any], number: int) -> dict[str, Any]:
            try:
                out = function(row)
            except Exception as error:
                raise DataError(
                    f"formatting_func failed on {name} row {number}: {error!r}"
                ) from error
            if not isinstance(out, Mapping):
                raise DataError(
                    f"formatting_func must give a dict or a string for each row, got "
                    f"{type(out).__name__} on {name} row {number}"
                )
            return dict(out)

        return dataset.map(one, with_indices=True, remove_columns=drop, load_from_cache_file=False)

    key = ("formatted", id(function), config.trainer_type == "GRPO")
    train = prepared.get((*key, "train"), lambda: make("train", data.train))
    if data.eval is None:
        return train, None
    return train, prepared.get((*key, "eval"), lambda: make("eval", data.eval))


def _in_trls_columns(
    config: RunConfig, data: FitData, prepared: PreparedData, tokenizer: Any
) -> tuple[Any, Any]:
    if given_args(config).get("dataset_text_field", "text") != "text":
        return data.train, data.eval  # the user says which column it is
    template = getattr(tokenizer, "chat_template", None)

    def mapped(what: str, dataset: Any) -> Any:
        def make() -> Any:
            return to_trl(dataset, recognise(dataset, kind, what=what), tokenizer, what)

        kind = config.trainer_type
        return prepared.get(("columns", kind, repr(template), what), make)

    train = mapped("train_dataset", data.train)
    return train, None if data.eval is None else mapped("eval_dataset", data.eval)


def wants_text(config: RunConfig, data: FitData) -> bool:
    """Whether the config's formatting_func gives TRL's text of a row, not a dict of columns."""
    function = config.model.formatting_func
    return function is not None and isinstance(function(next(iter(data.train))), str)


def _numbered(dataset: Any, args: Any, prepared: PreparedData) -> Any:
    """The data set with its row numbers as a column, which survives whatever the trainer drops."""
    from datasets import Dataset

    if (
        not isinstance(dataset, Dataset)
        or not args.remove_unused_columns
        or getattr(args, "packing", False)
    ):
        return dataset
    return prepared.get(
        ("numbered", id(dataset)), lambda: dataset.add_column(ROW_COLUMN, list(range(len(dataset))))
    )


def _take_row_numbers(trainer: Any, rows: int) -> list[int] | None:
    dataset = trainer.train_dataset
    columns = getattr(dataset, "column_names", None) or []
    if ROW_COLUMN in columns:
        numbers = list(dataset[ROW_COLUMN])
        trainer.train_dataset = dataset.remove_columns(ROW_COLUMN)
        return numbers
    if getattr(trainer.args, "packing", False) or not hasattr(dataset, "__len__"):
        return None
    return list(range(rows)) if len(dataset) == rows else None
