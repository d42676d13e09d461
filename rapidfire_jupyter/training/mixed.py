"""Answers of several runs of one base, decoded together: the base computes all rows at once.

Each run's rows go through its own LoRA, in the very computation that PEFT makes of them alone. What
the base computes for a row is the same, bit for bit, however many rows stand beside it, or it is
not: that depends on the device, the number of rows and the matrix library, not on the numbers. So
each new shape is tried before it is used, and what would differ is left to the runs themselves.

Any: models, PEFT layers and generation configs, which share no type.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from rapidfire_jupyter.training import generation
from rapidfire_jupyter.training.models import Base

MOST_ROWS = 64  # at once: more gain nothing, and their caches take memory
MOST_TOKENS = 4_096  # of prompts at once: long ones fill the device by themselves
TRIED_TOKENS = 2  # the prompt's forward, and one with a cache
TRIED_IN_HALF = 12  # in half precision, the first time: the like of 10^6 outputs

Tokens = tuple[int, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Adapter:
    """A run's plain LoRA, lent: its layers by the name of the module that they add to."""

    layers: Mapping[str, Any]

    def adds_nothing(self) -> bool:
        """Whether every B is zero, as LoRA begins."""
        ups = (layer.lora_B[layer.active_adapters[0]] for layer in self.layers.values())
        return not any(bool(p.any()) for up in ups for p in up.parameters())


@dataclass(frozen=True)
class Loan:
    """What a run lends to a shared batch.

    Attributes:
        alike: What must be equal for runs to share one: base, rows at once, and how to decode.
    """

    adapter: Adapter
    alike: tuple[Any, ...]


def adapter(model: Any, base: Base) -> Adapter | None:
    """The adapter of a model that is plain LoRA over a base as it is; None for any other."""
    from peft.tuners.lora import layer as lora
    from peft.tuners.tuners_utils import BaseTunerLayer

    if not hasattr(model, "get_base_model") or hasattr(base.model, "peft_config"):
        return None
    if rows_meet(base.model.config):
        return None
    named = model.get_base_model().named_modules()
    layers: dict[str, Any] = {n: m for n, m in named if isinstance(m, BaseTunerLayer)}
    if not all(type(one) is lora.Linear and _is_plain(one) for one in layers.values()):
        return None
    shared = {id(parameter) for parameter in base.model.parameters()}
    for one in layers.values():
        for part in (one.lora_A, one.lora_B):
            shared.update(id(parameter) for parameter in part.parameters())
    if any(id(parameter) not in shared for parameter in model.parameters()):
        return None  # trained tokens, heads, biases, rewritten weights, DoRA's magnitudes
    return Adapter(layers)


def _is_plain(layer: Any) -> bool:
    active = layer.active_adapters
    return (
        len(active) == 1
        and active[0] in layer.lora_A
        and active[0] not in layer.lora_variant
        and not layer.merged
        and not layer.disable_adapters
    )


def runs_at_once(prompts: Sequence[Tokens], batch_rows: int) -> int:
    """How many runs may answer together; 1 if none should."""
    rows = min(batch_rows, len(prompts))
    tokens = rows * max(map(len, prompts), default=1)
    return max(1, min(MOST_ROWS // max(1, rows), MOST_TOKENS // max(1, tokens)))


class Mixer:
    """Decodes for several runs, and knows for which shapes that changes no bit. For one thread."""

    def __init__(self) -> None:
        self._same: dict[tuple[str, Shape], bool] = {}
        self.answered = 0  # prompts that were answered in shared batches

    def decode(
        self,
        base: Base,
        own: Any,
        adapters: Sequence[Adapter],
        config: Any,
        prompts: Sequence[Tokens],
        batch_rows: int,
        between: generation.Between,
    ) -> list[list[Tokens | None]]:
        """What each run answers to the prompts, as it would alone; None where it has to be asked.

        Args:
            own: The model of the first run, in evaluation mode: what shapes are tried with.
            config: As `generation.greedy` gives it, the same for all runs.
        """
        answers: list[list[Tokens | None]] = [[None] * len(prompts) for _ in adapters]
        model = _decoder(base, own)
        cut = generation.fitting(model, config, prompts)
        for batch in generation.batches(cut, batch_rows):
            ids, runs = [cut[i] for i in batch], len(adapters)
            if not self._keeps_bits(base.name, model, own, adapters[0], config, ids, runs, between):
                continue
            with mixing(model, adapters):
                made = generation.answer_batch(model, config, ids * runs, between)
            for place, answer in enumerate(made or ()):
                answers[place // len(batch)][batch[place % len(batch)]] = tuple(answer)
                self.answered += 1
        return answers

    def probe(
        self,
        base: Base,
        own: Any,
        adapters: Sequence[Adapter],
        config: Any,
        prompts: Sequence[Tokens],
        batch_rows: int,
        between: generation.Between,
    ) -> float | None:
        """Seconds of one run's answers at their longest, from a few tokens of a usual batch.

        Args:
            adapters: Of all runs that would answer together; fewer than two: `own` does alone.

        Returns:
            The run's share; None if there is no memory for it.
        """
        model, runs = _decoder(base, own), len(adapters)
        cut = generation.fitting(model, config, prompts)
        parts = generation.batches(cut, batch_rows)
        batch = [cut[i] for i in parts[len(parts) // 2]]
        if runs > 1 and self._keeps_bits(
            base.name, model, own, adapters[0], config, batch, runs, between
        ):
            with mixing(model, adapters):
                seconds = generation.seconds(model, config, batch * runs, between)
        else:
            seconds, runs = generation.seconds(own, config, batch, between), 1
        return None if seconds is None else seconds / runs * len(cut) / len(batch)

    def _keeps_bits(
        self,
        name: str,
        model: Any,
        own: Any,
        adapter: Adapter,
        config: Any,
        ids: list[list[int]],
        runs: int,
        between: generation.Between,
    ) -> bool:
        """Whether the first run's logits are the same alone and in each place of a shared batch.

        In half precision another order of summing shows only now and then: in about one of 10^5
        outputs. There more tokens are tried, and one difference tells of all widths.
        """
        half = model.dtype in (torch.bfloat16, torch.float16)
        rows, width = (runs, len(ids), torch.get_num_threads()), max(map(len, ids))
        known = [same for (n, shape), same in self._same.items() if (n, shape[:3]) == (name, rows)]
        if half and not all(known):
            return False
        shape = (*rows, width)
        if (name, shape) not in self._same:
            tokens = TRIED_IN_HALF if half and not known else TRIED_TOKENS
            tokens = min(tokens, config.max_new_tokens)
            tried = partial(generation.first_logits, config=config, tokens=tokens)
            alone = tried(own, prompts=ids, between=between)
            with mixing(model, [adapter] * runs):
                together = tried(model, prompts=ids * runs, between=between)
            self._same[name, shape] = _equal(alone, together, runs)
        return self._same[name, shape]


def _equal(
    alone: list[torch.Tensor] | None, together: list[torch.Tensor] | None, runs: int
) -> bool:
    if alone is None or together is None:
        return False  # no memory for one of them
    return all(
        torch.equal(one.repeat(runs, 1), many) for one, many in zip(alone, together, strict=True)
    )


def _decoder(base: Base, own: Any) -> Any:
    """A module tree over the base's weights that decodes as a run's model does."""
    model = body(base)
    model.generation_config = copy.deepcopy(own.generation_config)
    return model


def body(base: Base) -> Any:
    """A module tree over the base's weights, in which runs' rows can be mixed."""
    model: Any = copy.deepcopy(base.model, {id(p): p for p in base.model.parameters()})
    model.eval()
    return model


@contextmanager
def mixing(model: Any, adapters: Sequence[Adapter]) -> Iterator[None]:
    """While inside, the model's rows are those of the adapters in turn, each as many."""
    handles = []
    for name in dict.fromkeys(name for one in adapters for name in one.layers):
        layers = [one.layers.get(name) for one in adapters]
        hook = partial(_add, layers)
        handles.append(model.get_submodule(name).register_forward_hook(hook))
    apart = len(adapters) > 1 and attends_apart(model)
    try:
        if apart:
            model.set_attn_implementation(_attention(len(adapters)))
        yield
    finally:
        if apart:
            model.set_attn_implementation("sdpa")
        for handle in handles:
            handle.remove()


def _add(layers: Sequence[Any], module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
    """Add to each run's rows what its layer adds, as PEFT's Linear does in evaluation mode."""
    rows = inputs[0]  # (runs x B, T, in); output (runs x B, T, out)
    each = len(rows) // len(layers)
    for place, layer in enumerate(layers):
        if layer is None:
            continue
        name = layer.active_adapters[0]
        down, up = layer.lora_A[name], layer.lora_B[name]
        part = slice(place * each, (place + 1) * each)
        output[part] += up(down(rows[part].to(down.weight.dtype))) * layer.scaling[name]


def rows_meet(config: Any) -> bool:
    """Whether what a model computes for a row depends on the numbers of others, or on the past.

    Experts take the tokens of all rows that are routed to them; some rotary embeddings are
    stretched by the longest text so far.
    """
    text = config.get_text_config()
    experts = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    rope = str(getattr(text, "rope_parameters", None))
    stretched = "dynamic" in rope or "longrope" in rope
    return stretched or any(getattr(text, name, None) for name in experts)


def attends_apart(model: Any) -> bool:
    """Whether attention can be computed for each run's rows by itself, as alone.

    Its kernels divide long caches among threads by the number of rows, so that other rows beside a
    run's would change its last bits.
    """
    return bool(
        model.config._attn_implementation == "sdpa" and model._can_set_attn_implementation()
    )


def _attention(runs: int) -> str:
    """The name under which transformers knows attention in as many parts as there are runs."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    name = f"sdpa_of_{runs}_runs"
    AttentionInterface.register(name, partial(_attend, runs))
    AttentionMaskInterface.register(name, sdpa_mask)
    return name


def _attend(
    runs: int,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **given: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of each run's rows by itself; query and so on (runs x B, heads, T, width)."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    each, made = len(query) // runs, []
    for place in range(runs):
        part = slice(place * each, (place + 1) * each)
        mask = attention_mask
        if mask is not None and len(mask) == len(query):
            mask = mask[part]
        own = query[part], key[part], value[part], mask
        made.append(sdpa_attention_forward(module, *own, **given)[0])
    return torch.cat(made), None
