"""Losses of single eval rows, read off the forward that TRL makes anyway.

They pair two runs row by row, which tells a difference from noise with far fewer rows than two
means do. Any: TRL trainers, data sets, and what their models give.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import SequentialSampler

MOST_ROWS = 256  # kept of an evaluation


@contextmanager
def collected(trainer: Any, dataset: Any) -> Iterator[list[float]]:
    """Inside, what the model computes is looked at; afterwards the list holds a loss for each row.

    The list stays empty where batches are not one row each in the data set's order, where the loss
    is not that of a token, or where a hook would have the model compiled anew. A row without a
    token that a loss is computed on has nan.
    """
    found: list[float] = []
    if not _plain(trainer, dataset):
        yield found
        return
    batches: list[torch.Tensor] = []

    def look(module: Any, given: Any, output: Any) -> None:
        said, mask = _part(output, "log_probs"), _part(output, "label_mask")
        if said is not None and mask is not None and said.dim() == 2:
            batches.append(-said.detach().float().sum(1) / mask.sum(1))  # (B, T) -> (B,)

    handle = trainer.model.register_forward_hook(look)
    try:
        yield found
    finally:
        handle.remove()
    losses = torch.cat(batches).tolist() if batches else []
    if len(losses) == len(dataset):
        found += losses[:MOST_ROWS]


def _plain(trainer: Any, dataset: Any) -> bool:
    args = trainer.args
    if getattr(args, "loss_type", "") not in ("nll", "chunked_nll") or not hasattr(
        dataset, "__len__"
    ):
        return False
    other = (
        args.label_smoothing_factor,
        args.torch_compile,
        getattr(args, "packing", False),
        getattr(args, "eval_packing", False),
        getattr(args, "padding_free", False),
        getattr(trainer, "compute_loss_func", None),
    )
    if any(other):
        return False
    sampler = trainer._get_eval_sampler(dataset)
    return sampler is None or isinstance(sampler, SequentialSampler)


def _part(output: Any, name: str) -> Any:
    return output.get(name) if isinstance(output, dict) else getattr(output, name, None)
