"""Looking at a trainer without changing it: rehearsal, chunk evaluation, and a forward for checks.

Everything that a step or an evaluation leaves behind in a trainer, besides weights, is put back:
random streams, running metrics, counters, flags, and the loaders that accelerate has registered.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rapidfire_jupyter.training.context import rng_state, set_rng_state

_COUNTERS = (
    "_metrics",
    "_total_train_tokens",
    "_step",
    "_buffered_inputs",
    "_logs",
    "_current_train_step_time",
    "current_flos",
    "current_gradient_accumulation_steps",
)


@contextmanager
def untouched(trainer: Any) -> Iterator[None]:
    """Put a trainer and the random streams back to where they were, also after an exception."""
    streams = rng_state()
    counters = {n: _copied(n, getattr(trainer, n)) for n in _COUNTERS if hasattr(trainer, n)}
    gradient_state = trainer.accelerator.gradient_state
    loaders = list(gradient_state.dataloader_references)
    sync = gradient_state.sync_gradients
    handler, control = trainer.callback_handler, copy.copy(trainer.control)
    eval_loader, tokens = handler.eval_dataloader, trainer.state.num_input_tokens_seen
    training = trainer.model.training
    try:
        yield
    finally:
        trainer.callback_handler, trainer.control = handler, control
        handler.eval_dataloader, trainer.state.num_input_tokens_seen = eval_loader, tokens
        trainer.model.train(training)
        gradient_state.dataloader_references = loaders
        gradient_state._set_sync_gradients(sync)
        for name in _COUNTERS:
            if name in counters:
                setattr(trainer, name, counters[name])
            else:
                trainer.__dict__.pop(name, None)
        set_rng_state(streams)


def rehearse(trainer: Any) -> bool:
    """One forward and backward on the longest batch, without an optimizer step.

    Shape, memory and collator errors come here, before anything is trained.

    Returns:
        Whether the step drew from the random streams (dropout, sampling).
    """
    with untouched(trainer):
        before = rng_state()
        batch = _longest_batch(trainer)
        batches, items = trainer.get_batch_samples(iter([batch]), 1, trainer.args.device)
        trainer.current_gradient_accumulation_steps = 1
        trainer.training_step(trainer.model_wrapped, batches[0], items)
        drew = not torch.equal(torch.get_rng_state(), before["torch"])
        if "cuda" in before:
            now = torch.cuda.get_rng_state_all()
            drew = drew or not all(map(torch.equal, now, before["cuda"]))
        trainer.model.zero_grad(set_to_none=True)
    return drew


def chunk_evaluation(trainer: Any, dataset: Any, on_batch: Any) -> dict[str, float]:
    """Evaluate as TRL does, without its callbacks and without a row in its log.

    Args:
        dataset: Rows that the trainer prepared. Any: datasets.Dataset.
        on_batch: A callback whose `on_prediction_step` is called after each batch. Any: TrainerCallback.
    """
    with untouched(trainer):
        trainer.callback_handler = _QuietHandler(on_batch, trainer)
        loader = trainer.get_eval_dataloader(dataset)
        output = trainer.evaluation_loop(loader, description="Evaluation", metric_key_prefix="eval")
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


def _longest_batch(trainer: Any) -> Any:
    dataset = trainer.train_dataset
    if hasattr(trainer, "_buffered_inputs") or not hasattr(dataset, "__len__"):
        return next(iter(trainer.get_train_dataloader()))
    rows = trainer._remove_unused_columns(dataset, "training")
    size = trainer.args.train_batch_size
    lengths = [0] * len(rows)
    for column in rows.column_names:
        if isinstance(rows[0][column], list):
            lengths = [n + len(v) for n, v in zip(lengths, rows[column], strict=True)]
    longest = sorted(range(len(rows)), key=lambda i: -lengths[i])[:size]
    return trainer.data_collator([rows[i] for i in sorted(longest)])


def _copied(name: str, value: Any) -> Any:
    return copy.deepcopy(value) if name in ("_metrics", "_logs") else value
