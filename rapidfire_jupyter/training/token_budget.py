"""Micro-batches by tokens: a batch is computed in parts, each within a number of padded tokens.

Rows of like length go into one part, so a part has little padding, and a few long rows do not make
short ones as long. The rows of an optimizer step stay what they are, and with them steps, schedule
and chunks. TRL divides each part's loss by the learned tokens of the whole step (SFT), or takes its
mean over pairs (DPO, Reward), which is weighted by the part's share of the batch's pairs here: the
parts' sum is the batch's loss, but for the order of additions.

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


def split(
    batch: Mapping[str, Any], max_tokens: int, multiple: int = 1, pairs: bool = False
) -> list[dict[str, Any]]:
    """A collated batch in parts, each without the columns that all its rows pad.

    Args:
        batch: Tensors (B, T) or (B, ...), `attention_mask` (B, T) among them.
        pairs: Row n and row n + B / 2 are a pair and stay together; tensors (B / 2, ...) hold what
            is known of pairs.

    Raises:
        ValueError: It has something else.
    """
    mask = batch.get("attention_mask")
    if mask is None or mask.dim() != 2:
        raise ValueError("max_tokens_per_batch needs batches of padded rows with an attention_mask")
    rows, width = mask.shape
    each = 2 if pairs else 1  # rows that stay together
    count = rows // each
    for name, value in batch.items():
        there = isinstance(value, torch.Tensor) and value.dim() > 0
        if not there or len(value) not in (rows, count):
            raise ValueError(f"max_tokens_per_batch cannot cut {name!r} of a batch into rows")
    made = []
    lengths = mask.sum(dim=1).view(each, count).amax(dim=0).tolist()
    for part in parts_of(lengths, max_tokens // each, multiple):
        taken = [row + half * count for half in range(each) for row in part]
        used = mask[taken].any(dim=0).nonzero().flatten().tolist() or [0]
        first, last = used[0], used[-1] + 1
        more = -(last - first) % multiple
        last = min(width, last + more)
        first = max(0, last - math.ceil((last - first) / multiple) * multiple)
        cut = {name: value[taken if len(value) == rows else part] for name, value in batch.items()}
        made.append(
            {
                name: value[:, first:last] if batch[name].shape[:2] == mask.shape else value
                for name, value in cut.items()
            }
        )
    return made


def compute_in_parts(trainer: Any, max_tokens: int, pairs: bool = False) -> None:
    """Let an SFTTrainer compute its batches in parts, or a trainer whose batches are pairs."""
    whole = trainer.training_step
    multiple = getattr(trainer.args, "pad_to_multiple_of", None) or 1

    def training_step(model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        parts = split(inputs, max_tokens, multiple, pairs)
        if not pairs and num_items_in_batch is None:
            raise ValueError("max_tokens_per_batch needs a model whose loss counts learned tokens")
        metrics, steps = trainer._metrics["train"], trainer.current_gradient_accumulation_steps
        before, loss = {name: len(values) for name, values in metrics.items()}, 0
        sizes = [len(part["attention_mask"]) for part in parts]
        try:
            for part, size in zip(parts, sizes, strict=True):
                # Losses by batch are divided by it: those of pairs, and a MoE's balance of experts.
                share = sum(sizes) / size if pairs else len(parts)
                trainer.current_gradient_accumulation_steps = steps * share
                loss = loss + whole(model, part, num_items_in_batch)
        finally:
            trainer.current_gradient_accumulation_steps = steps
        for name, values in metrics.items():
            added = values[before.get(name, 0) :]
            if len(added) == len(parts) > 1:
                values[before.get(name, 0) :] = [_of_batch(name, added, parts, pairs)]
        return loss

    trainer.training_step = training_step


def _of_batch(
    name: str, added: Sequence[float], parts: Sequence[Mapping[str, Any]], pairs: bool
) -> float:
    """A batch's metric from those of its parts: their mean by what TRL takes it over."""
    if name in ("min_reward", "max_reward"):
        return min(added) if name == "min_reward" else max(added)
    weights = [_weight(name, part) if pairs else _learned(part["labels"]) for part in parts]
    return sum(map(math.prod, zip(added, weights, strict=True))) / max(1, sum(weights))


def _learned(labels: Any) -> int:
    return int((labels[:, 1:] != -100).sum())


def _weight(name: str, part: Mapping[str, Any]) -> int:
    """What a metric of pairs is a mean over: answers' tokens, of both or one side, else pairs."""
    pairs = len(part["attention_mask"]) // 2
    rows = {
        "entropy": slice(None),
        "mean_token_accuracy": slice(pairs),
        "logits/chosen": slice(pairs),
        "logits/rejected": slice(pairs, None),
    }.get(name)
    return pairs if rows is None else int(part["completion_mask"][rows, 1:].sum())
