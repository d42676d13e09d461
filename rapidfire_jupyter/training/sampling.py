"""Tokens drawn for several runs in one batch: each run's from its own stream, as it draws alone.

The loop, the processors of logits and the criteria to stop by are those of transformers; only the
draw is ours, since there each run needs a random stream of its own. A run whose rows have all ended
draws no more, though the rows of others go on.

Any: models, logits processors and generation configs of transformers.
"""

import copy
import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.training import mixed, watching
from rapidfire_jupyter.training.models import Base

logger = logging.getLogger(__name__)

Generate = Callable[..., torch.Tensor]  # a model's `generate`


@dataclass(frozen=True)
class Prompts:
    """What a model is asked, as TRL pads it: (B, T) each; and how to sample.

    Attributes:
        config: The trainer's; `defaults` is the model's, for what that one leaves open.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    config: Any
    defaults: Any

    def equal(self, other: "Prompts") -> bool:
        """Whether the same is asked in the same way."""
        same = torch.equal(self.ids, other.ids) and torch.equal(self.mask, other.mask)
        return same and _texts(self) == _texts(other)


def plain_adapter(trainer: Any, config: RunConfig, base: Base) -> mixed.Adapter | None:
    """The plain LoRA of a run that samples as TRL's own trainers do on a CPU; None for others."""
    if config.trainer.name not in ("GRPO", "RLOO") or config.trainer.cls is not None:
        return None
    args, how = trainer.args, getattr(trainer, "generation_config", None)
    otherwise = (
        how is None  # by vLLM
        or args.generation_kwargs
        or args.max_completion_length is None
        or args.cache_implementation
        or args.torch_compile
        or args.neftune_noise_alpha
        or getattr(args, "use_transformers_continuous_batching", False)
        or getattr(args, "cast_lm_head_to_fp32", False)
        or not _can_be_tried(base.model)
    )
    if otherwise or args.device.type != "cpu" or not hasattr(trainer.train_dataset, "__len__"):
        return None
    return mixed.adapter(trainer.model, base)


def samples_as(body: Any, trainer: Any, adapter: mixed.Adapter) -> bool:
    """Whether a run's model computes as the base with its LoRA does, and draws nothing at that.

    Dropout is one of the things that would part them: TRL samples in training mode.
    """
    model, ids = trainer.model, torch.ones((1, 4), dtype=torch.long)
    prompts = Prompts(ids, torch.ones_like(ids), trainer.generation_config, model.generation_config)
    body.generation_config = copy.deepcopy(model.generation_config)
    try:
        with watching.untouched(trainer):
            model.train()
            alone, drew = without_drawing(lambda: first_logits(model.generate, prompts, 1))
            with mixed.mixing(body, [adapter]):
                return not drew and alone == first_logits(body.generate, prompts, 1)
    except Exception:
        logger.debug("a run samples alone", exc_info=True)
        return False


def is_changed(model: Any) -> bool:
    """Whether somebody's hooks, or dropout, make a model compute otherwise than its weights say."""
    for module in model.modules():
        if isinstance(module, nn.Dropout) and module.p > 0 and module.training:
            return True
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
            if getattr(hook, "__module__", "").split(".")[0] not in ("transformers", "peft"):
                return True
    return False


def sampled(
    model: Any, prompts: Prompts, streams: Sequence[torch.Tensor]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Prompts and completions of each run, (B, T + new), and its stream after them."""
    each = len(prompts.ids)
    draws = [_Draw(stream, **_means(model, prompts)) for stream in streams]
    parts = [slice(place * each, (place + 1) * each) for place in range(len(draws))]

    def choose(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        tokens = [d.next_tokens(ids[p], logits[p]) for d, p in zip(draws, parts, strict=True)]
        chosen = torch.full_like(logits, -float("inf"))
        return chosen.scatter_(1, torch.cat(tokens)[:, None], 0.0)

    _generate(model.generate, prompts.config, prompts, len(draws), choose)
    return [draw.made() for draw in draws]


def first_logits(generate: Any, prompts: Prompts, tokens: int, runs: int = 1) -> list[list[bytes]]:
    """Digests of the logits of each row, for the first tokens, greedily chosen."""
    found: list[list[bytes]] = []

    def look(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        found.append([hashlib.blake2b(row, digest_size=16).digest() for row in logits.numpy()])
        return logits

    short = copy.deepcopy(prompts.config)
    short.max_new_tokens = tokens
    _generate(generate, short, prompts, runs, look, ends=False)
    return found


def without_drawing(compute: Callable[[], list[list[bytes]]]) -> tuple[list[list[bytes]], bool]:
    """What a function gives, and whether it drew from the random stream, which is put back."""
    stream = torch.get_rng_state()
    try:
        found = compute()
        return found, not torch.equal(stream, torch.get_rng_state())
    finally:
        torch.set_rng_state(stream)


def _can_be_tried(model: Any) -> bool:
    """Whether equal logits in a trial mean that further ones are equal, too.

    In half precision they do not: another order of summing shows only now and then, when it crosses
    the border between two of the few numbers. In float32 it shows at once.
    """
    whole = all(parameter.dtype == torch.float32 for parameter in model.parameters())
    return whole and mixed.attends_apart(model) and not mixed.rows_meet(model.config)


def _texts(prompts: Prompts) -> tuple[str, str]:
    return prompts.config.to_json_string(), prompts.defaults.to_json_string()


class _Draw:
    """Draws one run's tokens as transformers' `_sample` does, from a stream of its own."""

    def __init__(self, stream: torch.Tensor, processors: Any, criteria: Any, pad: Any) -> None:
        self._generator = torch.Generator()
        self._generator.set_state(stream)
        self._processors, self._criteria, self._pad = processors, criteria, pad
        self._unfinished: torch.Tensor | None = None
        self.rows: torch.Tensor | None = None  # when all of them have ended

    def next_tokens(self, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """The next token of each row, (B,); padding once all have ended."""
        if self.rows is not None:
            return self._pad.expand(len(ids))  # type: ignore[no-any-return]
        if self._unfinished is None:
            self._unfinished = torch.ones(len(ids), dtype=torch.long)
        shares = nn.functional.softmax(self._processors(ids, logits), dim=-1)
        tokens: torch.Tensor = torch.multinomial(
            shares, num_samples=1, generator=self._generator
        ).squeeze(1)
        tokens = tokens.mul(self._unfinished) + self._pad * (1 - self._unfinished)
        ids = torch.cat([ids, tokens[:, None]], dim=-1)
        self._unfinished = self._unfinished & ~self._criteria(ids, None)
        if not self._unfinished.any():
            self.rows = ids
        return tokens

    def made(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Prompts and completions, and the stream after them."""
        assert self.rows is not None
        return self.rows, self._generator.get_state()


def _means(model: Any, prompts: Prompts) -> dict[str, Any]:
    """With what transformers would sample for one run: processors, criteria, padding."""
    found: dict[str, Any] = {}

    def look(
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **inputs: Any,
    ) -> torch.Tensor:
        pad = generation_config._pad_token_tensor
        found.update(processors=logits_processor, criteria=stopping_criteria, pad=pad)
        return input_ids

    model.generate(
        input_ids=prompts.ids,
        attention_mask=prompts.mask,
        generation_config=prompts.config,
        custom_generate=look,
    )
    return found


def _generate(
    generate: Any,
    config: Any,
    prompts: Prompts,
    runs: int,
    scores: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ends: bool = True,
) -> None:
    """Let a model generate for several runs: at each step, the tokens that are scored highest.

    Args:
        ends: Whether a token may end a row.
    """

    def sample(model: Any, input_ids: torch.Tensor, logits_processor: Any, **inputs: Any) -> Any:
        inputs["generation_config"].do_sample = False
        if not ends:
            given = inputs["stopping_criteria"]
            kept = [one for one in given if not hasattr(one, "eos_token_id")]
            inputs["stopping_criteria"] = type(given)(kept)
        return type(model)._sample(model, input_ids, scores, **inputs)

    with torch.no_grad():
        generate(
            input_ids=prompts.ids.repeat(runs, 1),
            attention_mask=prompts.mask.repeat(runs, 1),
            generation_config=config,
            custom_generate=sample,
        )
