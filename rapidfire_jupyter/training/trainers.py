"""From a config to one unmodified TRL trainer over a skeleton of the base.

What the engine decides for every run is set here: seeds, output folder, no bars, no NaN filter.
The order of rows is the chunk plan's.
"""

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from peft import get_peft_model
from torch.utils.data import Sampler
from transformers import set_seed

from rapidfire_jupyter import mixture
from rapidfire_jupyter.arguments import OURS
from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.data.mixing import mixed_rows, tasks_rows
from rapidfire_jupyter.data.plan import ChunkPlan, chunk_ends, even_ends
from rapidfire_jupyter.errors import ConfigError, DataError
from rapidfire_jupyter.training import overrides, prepared, rewards, streams
from rapidfire_jupyter.training.frozen import FrozenModels, frozen_keywords, references_loaded_once
from rapidfire_jupyter.training.models import Base
from rapidfire_jupyter.training.prepared import PreparedData
from rapidfire_jupyter.training.requirements import check_packages
from rapidfire_jupyter.training.token_budget import compute_in_parts

FAR = 10**9  # steps: an interval that never comes
MOST_CHUNKS = 100_000  # in a whole training: each has an end that is logged and kept


@dataclass(frozen=True)
class FitData:
    """The user's data sets and how their rows are cut into chunks. Any: datasets.Dataset.

    Attributes:
        eval: One, or several by the name of their task.
        eval_rows: Rows of the eval set whose loss is computed at chunk ends; 0 for all.
        generate_rows: Rows of it that are answered at chunk ends; 0 for none.
        max_new_tokens: Longest answer.
    """

    train: Any
    eval: Any
    plan: ChunkPlan
    seed: int
    eval_rows: int = 64
    generate_rows: int = 0
    max_new_tokens: int = 64


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
    """Gives a trainer's rows in the order of an epoch. `epoch` is set by the session.

    Args:
        order: The row numbers of an epoch; those that were dropped are passed over.
        rows: The row numbers that a trainer kept, in the order of its data set.
        length: Rows in an epoch; None for all that were kept.
    """

    def __init__(
        self, order: Callable[[int], list[int]], rows: list[int], length: int | None = None
    ) -> None:
        self._order, self._length = order, length
        self._index = {row: index for index, row in enumerate(rows)}
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        return iter([self._index[r] for r in self._order(self.epoch) if r in self._index])

    def __len__(self) -> int:
        return len(self._index) if self._length is None else self._length


def trainer_classes(config: RunConfig) -> tuple[Any, Any]:
    """The trainer and config class of a run: TRL's, or its SFTTrainer with R-Drop."""
    import trl

    kind = config.trainer
    name = "SFT" if kind.mixed else kind.name
    trainer_class = kind.cls or getattr(trl, f"{name}Trainer")
    if own_arguments(config):
        from rapidfire_jupyter.training.rdrop import RDropSFTTrainer

        trainer_class = RDropSFTTrainer
    return trainer_class, config.model.training_args.target_class()


def keywords_of(trainer_class: Any) -> tuple[str, ...]:
    """What a trainer class takes by name; of a class that passes `**kwargs` on, its parent's too.

    Any: a subclass of transformers.Trainer.
    """
    names: dict[str, None] = {}
    for owner in trainer_class.__mro__:
        if "__init__" not in vars(owner):
            continue
        parameters = inspect.signature(owner.__init__).parameters.values()
        passing = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        names.update({p.name: None for p in parameters if p.kind not in passing})
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    names.pop("self", None)
    return tuple(names)


def own_arguments(config: RunConfig) -> dict[str, Any]:
    """Training arguments that are ours, and so the trainer's: none, or a positive rdrop_alpha."""
    alpha = given_args(config).get("rdrop_alpha", 0.0)
    return {"rdrop_alpha": alpha} if alpha else {}


def token_budget(config: RunConfig) -> int | None:
    """Tokens of a micro-batch at most, where batches are computed in parts."""
    found: int | None = given_args(config).get("max_tokens_per_batch")
    return found


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
    ours = OURS.get(getattr(config.model.training_args, "target", ("", ""))[1], {})
    args = {k: v for k, v in given_args(config).items() if k not in ours}
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
    check_packages(values, config.model.model_kwargs or {})
    _, arguments_class = trainer_classes(config)
    try:
        return arguments_class(
            output_dir=output_dir, restore_callback_states_from_checkpoint=True, **values
        )
    except (ValueError, TypeError, ImportError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"{arguments_class.__name__} refuses these arguments: {first}") from error


def uses_vllm(config: RunConfig) -> bool:
    """Whether a run's answers are sampled by vLLM."""
    return bool(given_args(config).get("use_vllm"))


def check_vllm(configs: Iterable[RunConfig]) -> None:
    """Refuse vLLM where it cannot work: without a GPU, and for more than one run.

    Raises:
        ConfigError: It is asked for there.
    """
    runs = sum(uses_vllm(config) for config in configs)
    if runs > 1:
        raise ConfigError(
            f"use_vllm=True is for one run of an experiment, got {runs}: an engine or server of "
            "vLLM holds the weights of one run; leave it out, or train these runs one after "
            "another, each as an experiment in a kernel of its own"
        )
    if runs and not torch.accelerator.is_available():
        raise ConfigError("use_vllm=True needs a GPU, found none; leave it out")


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
    base: Base,
    data: FitData,
    kept: PreparedData,
    frozen: FrozenModels,
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
    train, evaluation = prepared.sets(config, (data.train, data.eval), kept, tokenizer)
    keywords = {**(config.model.trainer_kwargs or {}), **own_arguments(config)}
    takes = keywords_of(trainer_class)
    keywords.update(frozen_keywords(config, args, base, takes, frozen))
    if "compute_metrics" in takes and compute_metrics is not None:
        keywords["compute_metrics"] = compute_metrics
    if "data_collator" in takes and config.model.data_collator is not None:
        keywords["data_collator"] = copy.deepcopy(config.model.data_collator)
    adapter = peft_object(config)
    if "peft_config" in takes:
        keywords["peft_config"] = adapter
    elif adapter is not None:
        set_seed(args.seed)  # as TRL's trainers do before they put one on
        model = get_peft_model(model, adapter)
    if prepared.may_be_numbered(config, train):
        train = prepared.numbered(train, args, kept)
    with references_loaded_once(config, args, base, frozen):
        trainer = prepared.once(trainer_class, config, base.name, kept)(
            model=model,
            args=args,
            train_dataset=train,
            eval_dataset=evaluation,
            processing_class=tokenizer,
            callbacks=run_callbacks(config),
            **keywords,
        )
    rewards.guard(trainer)
    max_tokens = token_budget(config)
    if max_tokens is not None:
        compute_in_parts(trainer, max_tokens)
    streams.take_own(trainer)
    overrides.take_own(trainer)
    return trainer, prepared.take_row_numbers(trainer, data.plan.rows)


def make_schedule(
    trainer: Any, config: RunConfig, plan: ChunkPlan, rows: list[int] | None
) -> Schedule:
    """Steps and chunk ends of a built trainer; installs the plan's order where rows are rows."""
    args = trainer.args
    plain_order = args.train_sampling_strategy == "random" and not config.trainer.own_order
    aligned = rows is not None and plain_order
    if plan.tasks and not aligned:
        raise DataError(
            "the rows of a mixture are not known again in what the trainer made of them; leave "
            "packing and train_sampling_strategy out"
        )
    if aligned and rows is not None:
        sampler = _sampler(plan, config, rows)
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
    if config.trainer.generates and config.trainer.own_order:
        every = getattr(args, "steps_per_generation", 1) * getattr(args, "num_iterations", 1)
        multiple = every // math.gcd(every, args.gradient_accumulation_steps)
    rows_per_step = args.train_batch_size * args.gradient_accumulation_steps
    dropped = 0 if rows is None else plan.rows - len(set(rows))
    if aligned:
        kept = rows if dropped and not plan.tasks else None
        ends = chunk_ends(plan, kept, rows_per_step, per_epoch, total)
    else:
        ends = even_ends(plan.num_chunks, total / per_epoch, total, multiple)
    return Schedule(total, per_epoch, rows_per_step, tuple(ends), aligned, multiple, dropped)


def _sampler(plan: ChunkPlan, config: RunConfig, rows: list[int]) -> PlanSampler:
    """The order of a run's rows: the plan's; in a mixture, its own by its weights."""
    if not plan.tasks:
        return PlanSampler(plan.order, rows)
    kept, known = tasks_rows(plan.tasks, rows), config.model.mixture
    times = mixture.in_parts(known["weights"])
    for place, name in enumerate(known["tasks"]):
        if not kept[place] and any(parts[place] for _, parts in times):
            raise DataError(
                f"no rows of task {name!r} are left to train on: all {plan.tasks[place]} were "
                "dropped, as too long or with nothing to learn from; raise max_length, or give it "
                "the weight 0"
            )

    def order(epoch: int) -> list[int]:
        first = epoch * plan.rows
        return mixed_rows(kept, times, plan.seed, first, first + plan.rows)

    return PlanSampler(order, rows, plan.rows)


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
    """Bring a trainer's own sampler to where it is after some epochs.

    Its generator is in no checkpoint.
    """
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
