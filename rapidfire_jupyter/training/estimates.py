"""How much memory a run takes, and of what: weights, gradients, optimizer, activations.

Weights and gradients are counted, optimizer states follow from the optimizer's name, activations
from a rough formula until a rehearsal has measured them.
"""

import math
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rapidfire_jupyter.arguments import optimizer_name
from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.training.watching import checkpoints_layers


@dataclass(frozen=True)
class Footprint:
    """Bytes of a run on its device.

    Attributes:
        base: Frozen weights, which it may share; those of a teacher or reward model too.
        weights: Weights of its own: adapter, or all that it trains.
        activations: What a step keeps for its backward pass.
        measured: The activations were measured.
    """

    base: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    measured: bool = False


@dataclass(frozen=True)
class Largest:
    """The largest micro-batch that a run's model was given to learn from; 0 before the first.

    Attributes:
        tokens: Padding included.
        room: Share of its activations that there is memory for; None if for all, or unknown.
    """

    rows: int = 0
    tokens: int = 0
    room: float | None = None


UNKNOWN = Largest()
NONE_YET = Largest(room=0.0)  # as a model or trainer is made: no micro-batch is small enough


@dataclass(frozen=True)
class Shape:
    """What decides a transformer's activations."""

    hidden: int
    layers: int
    intermediate: int
    vocabulary: int


def shape_of(config: Any) -> Shape:
    """The shape in a model's config. Any: a Hugging Face config."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    hidden = int(getattr(text, "hidden_size", 0) or getattr(text, "d_model", 0) or 0)
    return Shape(
        hidden,
        int(getattr(text, "num_hidden_layers", 0) or 0),
        int(getattr(text, "intermediate_size", 0) or 4 * hidden),
        int(getattr(text, "vocab_size", 0) or 0),
    )


def activation_bytes(
    shape: Shape, tokens: int, value_bytes: int, checkpointing: bool, logits: bool
) -> int:
    """Activations that a micro-batch keeps for the backward pass, roughly.

    A layer keeps 34 bytes for each token and hidden value at 16 bit where attention scores are not
    stored and its MLP is 4 times as wide (Korthikanti et al. 2022, arXiv:2205.05198, equation 2):
    18 for attention and norms, and 4 for each value of the MLP's width. Gated MLPs keep two tensors
    of that width more, so 8. With checkpointing a layer keeps its input only, and one layer at a
    time keeps all.

    Args:
        tokens: Of a micro-batch, padding included.
        value_bytes: Of one activation: 2 in 16 bit.
        logits: The logits are kept whole: as they are, in float32, and their gradient.
    """
    layer = tokens * (18 * shape.hidden + 8 * shape.intermediate) * value_bytes // 2
    inputs = tokens * shape.hidden * value_bytes * shape.layers
    layers = inputs + layer if checkpointing else layer * shape.layers
    return layers + (tokens * shape.vocabulary * (value_bytes + 8) if logits else 0)


def optimizer_bytes(name: str, tensors: Sequence[torch.Tensor]) -> int:
    """States of an optimizer, by its name in TrainingArguments.

    Adam keeps two values for each parameter in its dtype, others one or none; "8bit" keeps bytes
    and a float32 for each 256 of them (bitsandbytes' blocks); Adafactor a row and a column.
    """
    if "adafactor" in name:
        return sum(4 * (sum(t.shape[-2:]) if t.dim() > 1 else t.numel()) for t in tensors)
    if name in ("sgd",):
        return 0
    states = 1 if any(one in name for one in ("rmsprop", "adagrad", "lion")) else 2
    if "8bit" in name:
        return sum(states * (t.numel() + 4 * math.ceil(t.numel() / 256)) for t in tensors)
    return sum(states * t.numel() * t.element_size() for t in tensors)


def weights_of(model: nn.Module, base: nn.Module) -> tuple[int, int, list[torch.Tensor]]:
    """Bytes that a model shares with its base, bytes of its own, and what it trains."""
    of_base = {id(p) for p in base.parameters()}
    shared = own = 0
    for parameter in model.parameters():
        size_bytes = parameter.numel() * parameter.element_size()
        shared += size_bytes if id(parameter) in of_base else 0
        own += 0 if id(parameter) in of_base else size_bytes
    return shared, own, [p for p in model.parameters() if p.requires_grad]


def companions(trainer: Any) -> list[nn.Module]:
    """The models that a trainer holds: its own, and references, teachers, rewards. Any: TRL's."""
    found: list[nn.Module] = []
    for value in vars(trainer).values():
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(one, nn.Module) and not any(one is known for known in found):
                found.append(one)
    return found


def footprint(trainer: Any, base: nn.Module) -> Footprint:
    """What a built trainer takes for sure, without activations. Any: a TRL trainer."""
    shared, own, trained = weights_of(trainer.model, base)
    known = {id(p) for p in trainer.model.parameters()}
    for model in companions(trainer):
        fresh = {id(p): p.numel() * p.element_size() for p in model.parameters()}
        shared += sum(size for key, size in fresh.items() if key not in known)
        known |= fresh.keys()
    gradients = sum(p.numel() * p.element_size() for p in trained)
    optim = optimizer_bytes(optimizer_name(trainer.args.optim), trained)
    return Footprint(shared, own, gradients, optim, 0)


def expected_activations(trainer: Any, tokens: int) -> int:
    """Activations of a trainer's micro-batch of so many tokens, by the formula. Any: a trainer."""
    args, model = trainer.args, trainer.model
    value_bytes = 2 if args.bf16 or args.fp16 else model.dtype.itemsize
    chunked = type(trainer).__name__.startswith("SFT")  # TRL's SFT loss takes logits in chunks
    checkpointing = checkpoints_layers(args)
    return activation_bytes(
        shape_of(model.config), tokens, value_bytes, checkpointing, logits=not chunked
    )


def micro_batch(config: RunConfig) -> tuple[int, int | None]:
    """Rows of a run's micro-batch, and its tokens if they have a budget."""
    return (
        int(getattr(config.model.training_args, "per_device_train_batch_size", 1)),
        getattr(config.model.training_args, "max_tokens_per_batch", None),
    )


def scaled(
    size_bytes: int, largest: Largest, then: tuple[int, int | None], now: tuple[int, int | None]
) -> tuple[int, Largest]:
    """Activations of the largest micro-batch, from those of a config that made others.

    Args:
        largest: The largest one then.
        then: As `micro_batch` tells it; where one has a budget and one has none, nothing follows.
    """
    (old_rows, old_budget), (rows, budget) = then, now
    if then == now:
        return size_bytes, largest
    if old_budget and budget:
        tokens = largest.tokens or old_budget
        more = budget > old_budget
        expected = tokens * budget // old_budget if more else min(tokens, budget)
        return size_bytes * expected // tokens, UNKNOWN
    return size_bytes if old_budget or budget else size_bytes * rows // old_rows, UNKNOWN


class Measured:
    """Filled in by `measuring`.

    Attributes:
        size_bytes: What was kept for backward passes; None if it was not measured.
    """

    def __init__(self) -> None:
        self.size_bytes: int | None = None
        self.largest = UNKNOWN


@contextmanager
def measuring(model: Any, skip: bool = False) -> Iterator[Measured]:
    """Measure a rehearsed step: on a GPU its peak but for gradients, else the tensors saved.

    Args:
        model: A Hugging Face model, with an adapter or without. Any: they share no type.
        skip: Measure nothing: hooks would make a compiled model compile anew.
    """
    found = Measured()
    if skip:
        yield found
        return

    def look(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if torch.is_grad_enabled() and inputs[0].numel() > found.largest.tokens:
            found.largest = Largest(len(inputs[0]), inputs[0].numel())

    hook = model.get_input_embeddings().register_forward_pre_hook(look)
    try:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            yield found
            gradients = sum(p.numel() * p.itemsize for p in model.parameters() if p.requires_grad)
            peak = torch.cuda.max_memory_allocated()
            found.size_bytes = max(0, peak - before - gradients)
        else:
            saved = _Saved(model)
            with torch.autograd.graph.saved_tensors_hooks(saved.keep, lambda tensor: tensor):
                yield found
            found.size_bytes = saved.peak
    finally:
        hook.remove()


class _Saved:
    """Counts the bytes of what autograd keeps at a time, weights aside, each storage once."""

    def __init__(self, model: nn.Module) -> None:
        self.peak = self._now = 0
        self._weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self._uses: Counter[int] = Counter()

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Called with each tensor that is kept; it is kept as it is."""
        if tensor.layout is not torch.strided:  # sparse: small, and without a storage to count
            return tensor
        storage = tensor.untyped_storage()
        where, size_bytes = storage.data_ptr(), storage.nbytes()
        if where not in self._weights:
            if not self._uses[where]:
                self._now += size_bytes
                self.peak = max(self.peak, self._now)
            self._uses[where] += 1
            weakref.finalize(tensor, self._free, where, size_bytes).atexit = False
        return tensor

    def _free(self, where: int, size_bytes: int) -> None:
        self._uses[where] -= 1
        if not self._uses[where]:
            self._now -= size_bytes


def activations(trainer: Any, found: Measured) -> tuple[int, bool]:
    """Activations of a rehearsed trainer in bytes; whether they are measured. Any: a trainer."""
    if found.size_bytes is None:
        return expected_activations(trainer, found.largest.tokens), False
    return found.size_bytes, True
