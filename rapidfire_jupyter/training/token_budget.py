"""Micro-batches by tokens: a batch is computed in parts, each within a number of padded tokens.

Rows of like length go into one part, so a part has little padding, and a few long rows do not make
short ones as long. The rows of an optimizer step stay what they are, and with them steps, schedule
and chunks. TRL divides each part's loss by the learned tokens of the whole step, so the parts' sum
is the batch's loss, but for the order of additions.

This file is copied into a run's plain TRL script, so it needs torch only.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any  # Any: TRL trainers, models and batches

import torch


def parts_of(lengths: Sequence[int], max_tokens: int, multiple: int = 1) -> list[list[int]]:
    """Cut rows into parts of at most so many tokens, padding included; a longer row is one alone.

    Args:
        lengths: Tokens of each row.
        multiple: Widths are rounded up to multiples of this.

    Returns:
        Row numbers of each part, ascending; parts of longer rows come first.
    """
    parts: list[list[int]] = []
    width = 0
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        if not parts or (len(parts[-1]) + 1) * width > max_tokens:
            parts.append([])
            width = math.ceil(lengths[row] / multiple) * multiple  # of a part's longest row
        parts[-1].append(row)
    return [sorted(part) for part in parts]


def split(batch: Mapping[str, Any], max_tokens: int, multiple: int = 1) -> list[dict[str, Any]]:
    """A collated batch in parts, each without the columns that all its rows pad.

    Args:
        batch: Tensors (B, T) or (B, ...), `attention_mask` (B, T) among them.

    Raises:
        ValueError: It has something else.
    """
    mask = batch.get("attention_mask")
    if mask is None or mask.dim() != 2:
        raise ValueError("max_tokens_per_batch needs batches of padded rows with an attention_mask")
    rows, width = mask.shape
    for name, value in batch.items():
        if not isinstance(value, torch.Tensor) or value.dim() == 0 or len(value) != rows:
            raise ValueError(f"max_tokens_per_batch cannot cut {name!r} of a batch into rows")
    made = []
    for part in parts_of(mask.sum(dim=1).tolist(), max_tokens, multiple):
        used = mask[part].any(dim=0).nonzero().flatten().tolist() or [0]
        first, last = used[0], used[-1] + 1
        more = -(last - first) % multiple
        last = min(width, last + more)
        first = max(0, last - math.ceil((last - first) / multiple) * multiple)
        made.append(
            {
                name: value[part][:, first:last] if value.shape[:2] == mask.shape else value[part]
                for name, value in batch.items()
            }
        )
    return made


def compute_in_parts(trainer: Any, max_tokens: int) -> None:
    """Let an SFTTrainer compute its batches in parts."""
    whole = trainer.training_step
    multiple = getattr(trainer.args, "pad_to_multiple_of", None) or 1

    def training_step(model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        parts = split(inputs, max_tokens, multiple)
        if num_items_in_batch is None:
            raise ValueError("max_tokens_per_batch needs a model whose loss counts learned tokens")
        learned = [int((part["labels"][:, 1:] != -100).sum()) for part in parts]
        metrics, steps = trainer._metrics["train"], trainer.current_gradient_accumulation_steps
        before = {name: len(values) for name, values in metrics.items()}
        trainer.current_gradient_accumulation_steps = steps * len(parts)  # of losses by batch: MoE
        try:
            loss = sum(whole(model, part, num_items_in_batch) for part in parts)
        finally:
            trainer.current_gradient_accumulation_steps = steps
        for name, values in metrics.items():
            added = values[before.get(name, 0) :]
            if len(added) == len(parts) > 1:
                mean = sum(map(math.prod, zip(added, learned, strict=True))) / max(1, sum(learned))
                values[before.get(name, 0) :] = [mean]
        return loss

    trainer.training_step = training_step
