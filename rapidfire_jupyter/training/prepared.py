"""Data sets as trainers take them: formatted, mapped, numbered, tokenised; each made once and kept.

Any: datasets, tokenizers and trainers, which share no type.
"""

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.data import formatting, tasks
from rapidfire_jupyter.data.layouts import recognise
from rapidfire_jupyter.data.lengths import row_lengths
from rapidfire_jupyter.data.mapping import chat_template, refuse_without_template, to_trl
from rapidfire_jupyter.encoding import encode
from rapidfire_jupyter.errors import DataError

ROW_COLUMN = "rapidfire_row"
MOST_BYTES = 2 << 30  # of data sets kept for runs to come; a run's trainer holds its own anyway

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
        "max_tokens_per_batch",
        "min_tokens_per_batch",
    ]
)


# Arguments among them that decide it for trainers that pair the rows of a batch.
_OF_BATCHES = frozenset({"per_device_train_batch_size", "loss_type"})


@dataclass(frozen=True)
class Same:
    """An object as part of a key: equal to itself only, and alive as long as the key is."""

    thing: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


@dataclass
class PreparedData:
    """Data sets that were prepared, kept for runs that would prepare the same.

    The least recently used ones go when all hold more than `MOST_BYTES`.
    """

    kept: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Callable[[], tuple[Any, ...]], make: Callable[[], Any]) -> Any:
        """The prepared data set for a key; made if there is none.

        The key is asked again after making: what a user's function changed in what it closes over
        by being called does not make its result another one.
        """
        made = self.kept.pop(key(), None)
        if made is None:
            made = make()
        with self._lock:  # runs' threads, and cells that ask for a script
            self.kept[key()] = made
            while len(self.kept) > 1 and sum(map(_size_bytes, self.kept.values())) > MOST_BYTES:
                self.kept.pop(next(iter(self.kept)))
        return made

    def clear(self) -> None:
        """Let go of all of them."""
        with self._lock:
            self.kept.clear()


def sets(
    config: RunConfig, given: tuple[Any, Any], kept: PreparedData, tokenizer: Any
) -> tuple[Any, Any]:
    """The train and eval data in TRL's columns: by a formatting_func first, then by their layout.

    Eval data sets by name stay apart.

    Raises:
        DataError: The formatting_func fails, or the layout is unknown; the message has the row.
    """
    train, evaluation = given
    evals = _evals(config, evaluation, kept, tokenizer)
    return (
        _in_columns(config, "train_dataset", train, kept, tokenizer),
        evals if isinstance(evaluation, dict) else evals.get(""),
    )


def asked_sets(
    config: RunConfig, evaluation: Any, kept: PreparedData, tokenizer: Any
) -> dict[str, Any]:
    """The eval data in TRL's columns by task, prompts apart from answers; empty if not told."""
    if text_field(config) != "text":
        return {}
    return _evals(config, evaluation, kept, tokenizer, answered=True)


def _evals(
    config: RunConfig,
    evaluation: Any,
    kept: PreparedData,
    tokenizer: Any,
    answered: bool = False,
) -> dict[str, Any]:
    return {
        name: _in_columns(config, tasks.called(name), one, kept, tokenizer, answered)
        for name, one in tasks.by_name(evaluation).items()
    }


def text_field(config: RunConfig) -> str:
    """The column that SFT takes as text."""
    return str(getattr(config.model.training_args, "dataset_text_field", None) or "text")


def format_set(config: RunConfig, what: str, dataset: Any) -> Any:
    """A data set as the config's formatting_func gives it.

    Raises:
        DataError: The function fails, or gives what is no text and no columns.
    """
    generates = config.trainer.generates
    text = "prompt" if generates else text_field(config)
    function = config.model.formatting_func
    return formatting.format_rows(dataset, function, what, keep=generates, text=text)


def _in_columns(
    config: RunConfig,
    what: str,
    dataset: Any,
    kept: PreparedData,
    tokenizer: Any,
    answered: bool = False,
) -> Any:
    """A data set in TRL's columns; `answered` keeps answers that the trainer would not be given."""
    function = config.model.formatting_func
    if function is not None:
        dataset = _formatted(config, what, dataset, kept)
    rows = config.trainer.rows
    if rows is None or text_field(config) != "text":
        return dataset  # no layout is known, or the user says which column it is
    mapped_for = _templated(config, tokenizer)
    template = repr(getattr(mapped_for, "chat_template", None))

    def make() -> Any:
        layout = recognise(dataset, rows, what=what)
        if answered and rows == "Distillation" and layout.kind in ("messages", "sharegpt"):
            layout = recognise(dataset, "SFT", kind=layout.kind, what=what)
        return to_trl(dataset, layout, mapped_for, what)

    return kept.get(lambda: ("columns", rows, answered, template, Same(dataset)), make)


def _formatted(config: RunConfig, what: str, dataset: Any, kept: PreparedData) -> Any:
    def key() -> tuple[Any, ...]:
        text, *objects = formatting.key_of(config.model.formatting_func)
        kind = ("formatted", config.trainer.generates, text_field(config), text)
        return (*kind, Same(dataset), *map(Same, objects))

    return kept.get(key, lambda: format_set(config, what, dataset))


def check_template(config: RunConfig, tokenizer: Any) -> None:
    """Refuse messages for a tokenizer that has no chat template, and is given none by the config.

    Raises:
        DataError: So it is.
    """
    refuse_without_template(_templated(config, tokenizer), "train_dataset")


def _templated(config: RunConfig, tokenizer: Any) -> Any:
    """The tokenizer with the chat template that the config asks for, by ours or by TRL's name."""
    asked = config.model.chat_template
    path = getattr(config.model.training_args, "chat_template_path", None)
    if asked is None and path is None:
        return tokenizer
    tokenizer = copy.copy(tokenizer)
    tokenizer.chat_template = path if asked is None else chat_template(asked)
    return tokenizer


def once(trainer_class: Any, config: RunConfig, base_name: str, kept: PreparedData) -> Any:
    """The trainer class, with its `_prepare_dataset` done once for runs that would do the same."""
    original = getattr(trainer_class, "_prepare_dataset", None)
    if original is None:
        return trainer_class
    args = config.model.training_args.given if config.model.training_args else {}
    batch = _OF_BATCHES if config.trainer.batch_prepared else frozenset()
    asked = {k: v for k, v in args.items() if k in batch or k not in _NOT_PREPARATION}
    key = (config.trainer_type, base_name, repr(encode([asked, config.model.chat_template])))

    def _prepare_dataset(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        def make() -> Any:
            try:
                return original(self, dataset, *args, **kwargs)
            except Exception:
                _refuse_bad_rows(dataset, args[0], f"{args[-1]}_dataset")
                raise

        return kept.get(lambda: (*key, repr(args[-1]), Same(dataset)), make)

    return type(trainer_class.__name__, (trainer_class,), {"_prepare_dataset": _prepare_dataset})


def _refuse_bad_rows(dataset: Any, tokenizer: Any, what: str) -> None:
    """Find the row that the chat template refuses, if one is why the trainer could not prepare."""
    if not hasattr(dataset, "__len__"):
        return
    try:
        for _ in row_lengths(dataset, tokenizer, what):
            pass
    except DataError:
        raise
    except Exception:  # what it cannot read either is the trainer's error to tell
        return


def may_be_numbered(config: RunConfig, dataset: Any) -> bool:
    """Whether row numbers can travel along as a column.

    Trainers that generate give every column to the reward functions; KTO makes two rows of a pair.
    """
    columns = getattr(dataset, "column_names", None) or []
    return not config.trainer.generates and not (
        config.trainer.rows == "KTO" and "rejected" in columns
    )


def follows_plan(config: RunConfig, dataset: Any) -> bool:
    """Whether a run meets its rows in the plan's order."""
    args = config.model.training_args
    strategy = getattr(args, "train_sampling_strategy", "random")
    return (
        not config.trainer.own_order
        and may_be_numbered(config, dataset)
        and strategy == "random"
        and not getattr(args, "packing", False)
        and hasattr(dataset, "__len__")
    )


def numbered(dataset: Any, args: Any, kept: PreparedData) -> Any:
    """The data set with its row numbers as a column, which survives whatever the trainer drops."""
    from datasets import Dataset

    if (
        not isinstance(dataset, Dataset)
        or not args.remove_unused_columns
        or getattr(args, "packing", False)
    ):
        return dataset
    return kept.get(
        lambda: ("numbered", Same(dataset)),
        lambda: dataset.add_column(ROW_COLUMN, list(range(len(dataset)))),
    )


def take_row_numbers(trainer: Any, rows: int) -> list[int] | None:
    """The row numbers of a trainer's data set, whose column is removed; None if it has none."""
    dataset = trainer.train_dataset
    columns = getattr(dataset, "column_names", None) or []
    if ROW_COLUMN in columns:
        numbers = list(dataset[ROW_COLUMN])
        trainer.train_dataset = dataset.remove_columns(ROW_COLUMN)
        return numbers
    if getattr(trainer.args, "packing", False) or not hasattr(dataset, "__len__"):
        return None
    return list(range(rows)) if len(dataset) == rows else None


def _size_bytes(dataset: Any) -> int:
    table = getattr(dataset, "data", None)
    return 0 if table is None else int(table.nbytes)
