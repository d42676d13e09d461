"""Looking at a trainer without changing it: rehearsal, chunk evaluation, and a forward for checks.

Everything that a step or an evaluation leaves behind in a trainer, besides weights, is put back:
random streams, attributes of any name, flags, and the loaders that accelerate has registered.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

from rapidfire_jupyter.errors import DataError
from rapidfire_jupyter.training import attributes, memory, row_losses
from rapidfire_jupyter.training.context import rng_state, set_rng_state, stream_moved
from rapidfire_jupyter.training.metrics import named, of_all_tasks, with_perplexity


@contextmanager
def untouched(trainer: Any) -> Iterator[None]:
    """Put a trainer and the random streams back to where they were, also after an exception."""
    streams = rng_state()
    before, copies = dict(vars(trainer)), attributes.plain(trainer)
    gradient_state = trainer.accelerator.gradient_state
    loaders = list(gradient_state.dataloader_references)
    sync = gradient_state.sync_gradients
    handler, control = trainer.callback_handler, copy.copy(trainer.control)
    eval_loader, tokens = handler.eval_dataloader, trainer.state.num_input_tokens_seen
    training = trainer.model.training
    try:
        yield
    finally:
        attributes.put_back(trainer, before, copies)
        trainer.control = control
        handler.eval_dataloader, trainer.state.num_input_tokens_seen = eval_loader, tokens
        trainer.model.train(training)
        gradient_state.dataloader_references = loaders
        gradient_state._set_sync_gradients(sync)
        set_rng_state(streams)


@dataclass(frozen=True)
class Draws:
    """What a step does besides computing.

    Attributes:
        batch: Making its batch uses random numbers.
        step: The computation does.
        unsaved: The trainer's attributes that it changed and no checkpoint has.
    """

    batch: bool
    step: bool
    unsaved: Sequence[str] = ()


def rehearse(trainer: Any, known: bool = True) -> Draws:
    """One forward and backward on the longest batch, without an optimizer step.

    Shape, memory and collator errors come here, before anything is trained. Any: a TRL trainer.

    Args:
        known: Its class is one of those by name. Others may need what their callbacks make when
            training begins (SDPO's teacher), so what fails here may do well then.
    """
    with untouched(trainer):
        start = rng_state()
        batch = _longest_batch(trainer)
        batches, items = trainer.get_batch_samples(iter([batch]), 1, trainer.args.device)
        from_batch = stream_moved(start)
        fetched = rng_state()
        trainer.current_gradient_accumulation_steps = 1
        _checkpoint_layers(trainer)
        failed, objects = False, {} if known else attributes.objects(trainer)
        try:
            trainer.training_step(trainer.model_wrapped, batches[0], items)
        except Exception as error:
            if known or memory.exhausted(error):
                raise
            failed = True
        noise = getattr(trainer, "neftune_noise_alpha", None)  # added from the first step on
        from_step = failed or stream_moved(fetched) or bool(noise)
        unsaved = () if known else attributes.replaced(trainer, objects)
        trainer.model.zero_grad(set_to_none=True)
    return Draws(from_batch and not hasattr(trainer, "_buffered_inputs"), from_step, unsaved)


def checkpoints_layers(args: Any) -> bool:
    """Whether a trainer's arguments ask for gradient checkpointing. Any: TrainingArguments."""
    return bool(getattr(args, "activation_checkpointing", args.gradient_checkpointing))


def _checkpoint_layers(trainer: Any) -> None:
    """Switch gradient checkpointing on, as `train()` does when it begins.

    Without it the rehearsal would need more memory than training.
    """
    args, model = trainer.args, trainer.model
    if not checkpoints_layers(args):
        return
    enable = getattr(model, "activation_checkpointing_enable", None)
    if enable is None:  # transformers before 5.24
        model.gradient_checkpointing_enable(args.gradient_checkpointing_kwargs)
        return
    given = dict(args.activation_checkpointing_kwargs or {})
    how = {name: given.pop(name) for name in ("every_n_layers", "offload") if name in given}
    enable(activation_checkpointing_kwargs=given or None, **how)


def first_batch(trainer: Any, pairs: bool) -> list[list[list[Any]]]:
    """The first rows of a trainer's order, decoded: pieces, and whether a loss is computed on them.

    Any: a TRL trainer; texts and flags.

    Args:
        pairs: The first half of a batch was chosen, the second rejected.
    """
    with untouched(trainer):
        loader = trainer.get_train_dataloader()
        trainer.accelerator._dataloaders[:] = [
            d for d in trainer.accelerator._dataloaders if d is not loader
        ]
        batch = _first(loader)
    if isinstance(batch, list):  # trainers that generate take prompts
        return [[[str(row.get("prompt")), False]] for row in batch]
    tokenizer = trainer.processing_class
    decode = getattr(tokenizer, "tokenizer", tokenizer).decode  # a processor has one
    if "input_ids" not in batch:
        return [
            [[f"{name}: ", False], *_pieces(decode, *row)]
            for name, part in _parts(batch).items()
            for row in _tokens(part)
        ]
    rows = [_pieces(decode, *row) for row in _tokens(batch)]
    if not pairs:
        return rows
    half = len(rows) // 2
    return [
        [[f"{name}: ", False], *row]
        for name, part in (("chosen", rows[:half]), ("rejected", rows[half:]))
        for row in part
    ]


def _parts(batch: Any) -> dict[str, dict[str, Any]]:
    """A batch of columns such as chosen_input_ids and chosen_labels, by what they begin with."""
    names = [key.removesuffix("_input_ids") for key in batch if key.endswith("_input_ids")]
    return {
        name: {
            key: batch[f"{name}_{key}"]
            for key in ("input_ids", "attention_mask", "labels")
            if f"{name}_{key}" in batch
        }
        for name in names
    }


def _tokens(batch: Any) -> Iterator[tuple[list[int], list[bool]]]:
    """Each row's tokens without padding, and on which of them a loss is computed."""
    ids = batch["input_ids"].tolist()
    if "labels" in batch:
        learned = [[label != -100 for label in row] for row in batch["labels"].tolist()]
    else:  # TRL's collator of preferences marks the completions
        mask = batch.get("completion_mask", batch.get("attention_mask"))
        learned = [[True] * len(row) for row in ids] if mask is None else mask.bool().tolist()
    if "attention_mask" in batch:
        real = batch["attention_mask"].bool().tolist()
    else:  # without padding: rows are packed, or as long as each other
        real = [[True] * len(row) for row in ids]
    for row, on, kept in zip(ids, learned, real, strict=True):
        pairs = [(token, yes) for token, yes, is_real in zip(row, on, kept, strict=True) if is_real]
        yield [token for token, _ in pairs], [yes for _, yes in pairs]


def _pieces(decode: Any, ids: list[int], learned: list[bool]) -> list[list[Any]]:
    """Runs of learned and masked tokens, decoded."""
    return [
        [decode([token for token, _ in group]), on]
        for on, group in groupby(zip(ids, learned, strict=True), key=lambda pair: pair[1])
    ]


def chunk_evaluation(
    trainer: Any, datasets: Mapping[str, Any], on_batch: Any
) -> tuple[dict[str, float], list[float]]:
    """Evaluate as TRL does, without its callbacks and without a row in its log.

    Args:
        datasets: Rows that the trainer prepared, by the name of their task; a single data set has
            an empty name. Any: datasets.Dataset.
        on_batch: Its `on_prediction_step` is called after each batch. Any: a TrainerCallback.

    Returns:
        The metrics; and the loss of each row of a single data set, as `row_losses.collected` says.
    """
    if "" in datasets:
        with row_losses.collected(trainer, datasets[""]) as losses:
            row = _evaluated(trainer, datasets[""], on_batch)
        return with_perplexity(row, trainer), losses
    rows = {name: _evaluated(trainer, one, on_batch) for name, one in datasets.items()}
    by_task = {name: named(row, name) for name, row in rows.items()}
    metrics = of_all_tasks(by_task)
    for row in by_task.values():
        metrics |= row
    return with_perplexity(metrics, trainer, by_task), []


def _evaluated(trainer: Any, dataset: Any, on_batch: Any) -> dict[str, float]:
    with untouched(trainer):
        trainer.callback_handler = _QuietHandler(on_batch, trainer)
        loader = trainer.get_eval_dataloader(dataset)
        output = trainer.evaluation_loop(
            loader,
            description="Evaluation",
            # As in Trainer.evaluate: nobody reads the logits, which cost TRL a second forward.
            prediction_loss_only=True if trainer.compute_metrics is None else None,
            metric_key_prefix="eval",
        )
        metrics = dict(output.metrics)
        running = getattr(trainer, "_metrics", {}).get("eval", {})
        metrics.update({f"eval_{k}": sum(v) / len(v) for k, v in running.items() if v})
        trainer.accelerator._dataloaders[:] = [
            d for d in trainer.accelerator._dataloaders if d is not loader
        ]
    return metrics


class _QuietHandler:
    """In place of a trainer's callback handler during a chunk evaluation."""

    def __init__(self, on_batch: Any, trainer: Any) -> None:
        self._on_batch = on_batch
        self._trainer = trainer
        self.eval_dataloader: Any = None

    def on_prediction_step(self, args: Any, state: Any, control: Any) -> Any:
        self._on_batch.on_prediction_step(args, state, control)
        return control


def _first(loader: Any) -> Any:
    """The first batch of a loader."""
    return _some(list(islice(iter(loader), 1)))[0]


def _some(found: list[Any]) -> list[Any]:
    if not found:
        raise DataError(
            "the stream gave no row; if it can be read only once, make it with "
            "IterableDataset.from_generator(function)"
        )
    return found


def _longest_batch(trainer: Any) -> Any:
    dataset = trainer.train_dataset
    if hasattr(trainer, "_buffered_inputs"):
        return _first(trainer.get_train_dataloader())
    if not hasattr(dataset, "__len__"):  # its first rows; a loader would draw a seed for workers
        batch = list(islice(iter(dataset), trainer.args.train_batch_size))
        return trainer._get_collator_with_removed_columns(trainer.data_collator)(_some(batch))
    rows = trainer._remove_unused_columns(dataset, "training")
    size = trainer.args.train_batch_size
    lengths = [0] * len(rows)
    for column in rows.column_names:
        if isinstance(rows[0][column], list):
            lengths = [n + len(v) for n, v in zip(lengths, rows[column], strict=True)]
    longest = sorted(range(len(rows)), key=lambda i: -lengths[i])[:size]
    return trainer.data_collator([rows[i] for i in sorted(longest)])
