"""Micro-batches by tokens: a batch is computed in parts, each within a number of padded tokens.

Rows of like length go into one part, so a part has little padding, and a few long rows do not make
short ones as long. The rows of an optimizer step stay what they are, and with them steps, schedule,
chunks and what is generated. A loss that TRL divides by the tokens of the whole step is the sum of
its parts'; one that is a mean over a batch is the mean of its parts', weighted by what it is a mean
over. So are the metrics. What TRL takes such means over is in `KINDS`.

This file is copied into a run's plain TRL script, so it needs torch only.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any  # Any: TRL trainers, models and batches

import torch

Part = Mapping[str, Any]
Over = Callable[[Part], int]  # how much a part has of what a mean is taken over


def _rows(part: Part) -> int:
    return max(len(value) for value in part.values() if value.dim())


def _learned(part: Part) -> int:
    return int((part["labels"][:, 1:] != -100).sum())


def _answers(part: Part) -> int:
    return int(part["completion_mask"][:, 1:].sum())


def _sampled(part: Part) -> int:
    mask = part["completion_mask"]
    return int((mask * part.get("tool_mask", 1)).sum())


def _side(part: Part, chosen: bool) -> torch.Tensor:
    """Which rows are chosen answers, or rejected ones: by their label, or else by halves."""
    rows = len(part["attention_mask"])
    label: torch.Tensor = part.get("label", torch.arange(rows) < rows // 2)
    return label.bool() == chosen


def _rows_of(chosen: bool) -> Over:
    return lambda part: int(_side(part, chosen).sum())


def _tokens_of(chosen: bool) -> Over:
    return lambda part: int(part["completion_mask"][_side(part, chosen), 1:].sum())


@dataclass(frozen=True)
class Kind:
    """What is known of a trainer.

    Attributes:
        loss: What its loss is a mean over; None if it is divided by the tokens of a whole step.
        losses: The same by `loss_type`, where it is another.
        metric: What its metrics are means over.
        metrics: The same by name, where it is another.
        masks: Which columns of the tensors whose names begin so are no padding.
        pairs: Row n and row n + B / 2 are a pair and stay together; tensors (B / 2, ...) hold what
            is known of pairs.
    """

    loss: Over | None = _rows
    losses: Mapping[str, Over | None] = field(default_factory=dict)
    metric: Over = _rows
    metrics: Mapping[str, Over] = field(default_factory=dict)
    masks: Mapping[str, str] = field(default_factory=lambda: {"": "attention_mask"})
    pairs: bool = False


_OF_ANSWERS = {
    "entropy": _answers,
    "mean_token_accuracy": _tokens_of(True),
    **{f"logits/{side}": _tokens_of(side == "chosen") for side in ("chosen", "rejected")},
    **{
        f"{name}/{side}": _rows_of(side == "chosen")
        for name in ("logps", "rewards")
        for side in ("chosen", "rejected")
    },
}
_PROMPTED = {"prompt_": "prompt_mask", "": "completion_mask"}
KINDS = {
    "SFTTrainer": Kind(loss=None, metric=_learned),
    "DPOTrainer": Kind(metrics=_OF_ANSWERS, pairs=True),
    "RewardTrainer": Kind(pairs=True),
    "KTOTrainer": Kind(metrics=_OF_ANSWERS),
    "GRPOTrainer": Kind(
        losses={"bnpo": _sampled, **dict.fromkeys(("cispo", "dapo", "vespo"))},
        metrics=dict.fromkeys(("entropy", "kl"), _sampled),
        masks=_PROMPTED,
    ),
    "RLOOTrainer": Kind(metrics={"entropy": _sampled}, masks=_PROMPTED),
}
_KL = Kind(masks={"": "KL_attention_mask"})  # of KTO's answers to other prompts
_EXTREMES = {
    "min_reward": min,
    "max_reward": max,
    "clip_ratio/low_min": min,
    "clip_ratio/high_max": max,
}


def parts_of(
    lengths: Sequence[Sequence[int]], max_tokens: int, multiple: int = 1
) -> list[list[int]]:
    """Cut rows into parts of at most so many tokens, padding included; a longer row is one alone.

    Args:
        lengths: Tokens of each row: one number, or one of its prompt and one of its completion
            where those are padded each for itself.
        multiple: Widths are rounded up to multiples of this.

    Returns:
        Row numbers of each part, ascending; parts of longer rows come first.
    """
    parts: list[list[int]] = []
    widths: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: (-sum(lengths[row]), row)):
        own = [math.ceil(length / multiple) * multiple for length in lengths[row]]
        both = [max(pair) for pair in zip(widths or own, own, strict=True)]
        if not parts or (len(parts[-1]) + 1) * sum(both) > max_tokens:
            parts.append([])
            both = own
        parts[-1].append(row)
        widths = both
    return [sorted(part) for part in parts]


def split(
    batch: Part, max_tokens: int, multiple: int = 1, kind: Kind = KINDS["SFTTrainer"]
) -> list[dict[str, Any]]:
    """A batch in parts, each without the columns that all its rows pad.

    Args:
        batch: Tensors (B, T) or (B, ...), masks of padding (B, T) among them; numbers of the whole
            batch stay as they are.

    Raises:
        ValueError: It has something else.
    """
    masks: dict[str, Any] = {begin: batch.get(name) for begin, name in kind.masks.items()}
    if any(mask is None or mask.dim() != 2 for mask in masks.values()):
        names = " and ".join(kind.masks.values())
        raise ValueError(f"max_tokens_per_batch needs batches of padded rows with {names}")
    rows = len(next(iter(masks.values())))
    each = 2 if kind.pairs else 1  # rows that stay together
    count = rows // each
    for name, value in batch.items():
        there = isinstance(value, torch.Tensor)
        if not there or (value.dim() and len(value) not in (rows, count)):
            raise ValueError(f"max_tokens_per_batch cannot cut {name!r} of a batch into rows")
    of_each = [mask.sum(dim=1).view(each, count).amax(dim=0) for mask in masks.values()]
    # At least two: what TRL has one column of, it takes for one number of a row.
    lengths = torch.stack(of_each, dim=1).clamp(min=2).tolist()
    made = []
    for part in parts_of(lengths, max_tokens // each, multiple):
        taken = [row + half * count for half in range(each) for row in part]
        columns = {begin: _used(mask[taken], multiple) for begin, mask in masks.items()}
        cut = {}
        for name, value in batch.items():
            begin = next(begin for begin in masks if name.startswith(begin))
            cut[name] = value
            if value.dim():
                cut[name] = value[taken if len(value) == rows else part]
            if value.shape[:2] == masks[begin].shape:
                cut[name] = cut[name][:, columns[begin]]
        made.append(cut)
    return made


def _used(mask: torch.Tensor, multiple: int) -> slice:
    """The columns that not all rows pad: a multiple, and at least two, where there are so many."""
    used = mask.any(dim=0).nonzero().flatten().tolist() or [0]
    width = math.ceil(max(2, used[-1] + 1 - used[0]) / multiple) * multiple
    last = min(mask.shape[1], used[0] + width)
    return slice(max(0, last - width), last)


def compute_in_parts(trainer: Any, max_tokens: int) -> None:
    """Let a trainer of one of `KINDS` compute its batches in parts.

    Its `compute_loss` gives a batch's loss, and has learned from all parts but the last.
    """
    kind = next(KINDS[one.__name__] for one in type(trainer).__mro__ if one.__name__ in KINDS)
    over = kind.losses.get(str(getattr(trainer.args, "loss_type", "")), kind.loss)
    multiple = getattr(trainer.args, "pad_to_multiple_of", None) or 1
    whole = trainer.compute_loss

    def compute_loss(
        model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        if not torch.is_grad_enabled():
            return whole(model, inputs, return_outputs, num_items_in_batch)
        if kind.loss is None and num_items_in_batch is None:
            raise ValueError("max_tokens_per_batch needs a model whose loss counts learned tokens")
        before = {name: len(values) for name, values in trainer._metrics["train"].items()}
        earlier: Any = 0.0
        with _one_kl(trainer, inputs, max_tokens, multiple) as batch:
            parts = split(batch, max_tokens, multiple, kind)
            sizes = [over(part) if over else 1 for part in parts]
            all_of_them = max(1, sum(sizes)) if over else 1
            with _balanced(trainer, 1 if over else len(parts)):
                for part, size in zip(parts, sizes, strict=True):
                    loss = whole(model, dict(part), False, num_items_in_batch)
                    loss = loss * (size / all_of_them)
                    if part is not parts[-1]:
                        _learn(trainer, loss)
                        earlier = earlier + loss.detach()
        if len(parts) > 1:
            _merge(trainer, kind, parts, before)
        return loss + earlier

    trainer.compute_loss = compute_loss
    if hasattr(trainer, "_get_per_token_logps_and_entropies"):
        _score_in_parts(trainer, max_tokens, multiple, kind)


@contextmanager
def _one_kl(trainer: Any, batch: Part, max_tokens: int, multiple: int) -> Iterator[Part]:
    """Let the losses of all parts have KTO's mean divergence of their whole batch.

    TRL takes the mean of what the model says of other answers less what the reference says, which
    it asks where no gradients are. It is told numbers whose difference is the batch's mean.

    Yields:
        The batch without those answers; any other trainer's as it is.
    """
    if "KL_input_ids" not in batch:
        yield batch
        return
    others = {name: value for name, value in batch.items() if name.startswith(("KL_", "ref_KL"))}
    batch = {name: value for name, value in batch.items() if name not in others}
    parts, said = split(others, max_tokens, multiple, _KL), {}
    ahead = "ref_KL_logps" in others  # the reference was asked before training
    if ahead:
        said["reference"] = torch.cat([part["ref_KL_logps"] for part in parts])
        batch["ref_KL_logps"] = torch.zeros_like(others["ref_KL_logps"])
    asked = trainer._compute_kl_logps

    def kl_logps(model: Any, part: Part) -> Any:
        who = "model" if torch.is_grad_enabled() else "reference"
        if who not in said:
            said[who] = torch.cat([asked(model, one) for one in parts])
        told = said["model"].new_zeros(len(part["label"]))
        if who == "model" and not ahead:
            return told
        mean = (said["model"] - said["reference"]).mean()
        return told + mean if ahead else told - mean

    trainer._compute_kl_logps = kl_logps
    try:
        yield batch
    finally:
        trainer._compute_kl_logps = asked


@contextmanager
def _balanced(trainer: Any, parts: int) -> Iterator[None]:
    """Divide the loss of a MoE's balance by the parts that are added up."""
    coefficient = getattr(trainer, "router_aux_loss_coef", None)
    if coefficient:
        trainer.router_aux_loss_coef = coefficient / parts
    try:
        yield
    finally:
        if coefficient:
            trainer.router_aux_loss_coef = coefficient


def _learn(trainer: Any, loss: Any) -> None:
    """Add the gradients of a loss, as `Trainer.training_step` does."""
    if trainer.loss_is_scaled_for_ga is False:
        loss = loss / trainer.current_gradient_accumulation_steps
    with torch.autocast(loss.device.type, enabled=False):
        trainer.accelerator.backward(loss)


def _merge(trainer: Any, kind: Kind, parts: Sequence[Part], before: Mapping[str, int]) -> None:
    """Make a batch's metrics of those of its parts, which follow what was there before."""
    metrics, sizes = trainer._metrics["train"], {}
    by_token = getattr(trainer, "importance_sampling_level", "") == "token"
    for name, values in metrics.items():
        over = kind.metrics.get(name, kind.metric)
        if by_token and "clip_ratio" in name:  # of GRPO; else each row has one ratio
            over = _sampled
        if over not in sizes:
            sizes[over] = [over(part) for part in parts]
        added, weights = values[before.get(name, 0) :], sizes[over]
        if len(added) < len(parts):  # parts without what it is a mean over have none
            weights = [weight for weight in weights if weight]
        if len(added) != len(weights):
            continue
        if name in _EXTREMES:
            known = [value for value in added if not math.isnan(value)] or added
            merged = _EXTREMES[name](known)
        else:
            merged = sum(map(math.prod, zip(added, weights, strict=True))) / max(1, sum(weights))
        values[before.get(name, 0) :] = [merged]
    chosen, rejected = (
        metrics.get(f"rewards/{side}", [])[before.get(f"rewards/{side}", 0) :]
        for side in ("chosen", "rejected")
    )
    if chosen and rejected:  # also where no part has both
        start = before.get("rewards/margins", 0)
        metrics["rewards/margins"][start:] = [chosen[0] - rejected[0]]


def _score_in_parts(trainer: Any, max_tokens: int, multiple: int, kind: Kind) -> None:
    """Let GRPO and RLOO ask the model of before and the reference in parts, too."""
    whole = trainer._get_per_token_logps_and_entropies

    def scores(
        model: Any, ids: Any, mask: Any, kept: int, batch_size: Any = None, **given: Any
    ) -> Any:
        images = any(value is not None and value is not False for value in given.values())
        if torch.is_grad_enabled() or not trainer.model.training or images:
            return whole(model, ids, mask, kept, batch_size, **given)
        batch = {
            "prompt_ids": ids[:, :-kept],
            "prompt_mask": mask[:, :-kept],
            "completion_ids": ids[:, -kept:],
            "completion_mask": mask[:, -kept:],
            "rows": torch.arange(len(ids), device=ids.device),
            "columns": torch.arange(kept, device=ids.device).expand(len(ids), kept),
        }
        said = []
        for part in split(batch, max_tokens, multiple, kind):
            both = (
                torch.cat([part[f"prompt_{name}"], part[f"completion_{name}"]], dim=1)
                for name in ("ids", "mask")
            )
            logps, _, _ = whole(model, *both, part["columns"].shape[1], **given)
            said.append((part["rows"][:, None], part["columns"], logps))
        found = said[0][2].new_zeros(len(ids), kept)
        for taken, columns, logps in said:
            found[taken, columns] = logps
        return found, None, None

    trainer._get_per_token_logps_and_entropies = scores
