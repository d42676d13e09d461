"""Completions of GRPO and RLOO, sampled for several runs at once where that changes no bit.

A run samples in the middle of a step, where it cannot wait for others. So the first of several runs
that is about to sample at a step guesses: runs that wait at the boundary before that step, over the
same base and data, will be given the same prompts, with the weights and the random stream that they
have there. It samples for them, too. A run that comes to sample itself takes what is kept for it if
all of the guess was right, and else samples as TRL does: a wrong guess costs time, never a bit.

Each run's rows go through its own LoRA and its own attention (`mixed.py`), and its tokens are drawn
from its own stream by transformers' own processors. Whether the rest of the base gives the same
bits for more rows is a matter of shapes, so each is tried first.

On a CPU only: on a GPU, transformers draws on for a while after the last row has ended.

Any: TRL trainers, models, PEFT layers and generation configs, which share no type.
"""

import copy
import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.training import mixed
from rapidfire_jupyter.training.models import Base
from rapidfire_jupyter.training.sampling import (
    Generate,
    Prompts,
    first_logits,
    is_changed,
    plain_adapter,
    sampled,
    samples_as,
    without_drawing,
)

logger = logging.getLogger(__name__)

MOST_MISSES = 2  # wrong guesses about a run, after which none is made
TRIED_TOKENS = 2  # of further widths of prompts
# Arguments that must be equal for runs to meet the same prompts and to sample in the same way.
_ALIKE = (
    "seed",
    "data_seed",
    "shuffle_dataset",
    "generation_batch_size",
    "num_generations",
    "num_iterations",
    "steps_per_generation",
    "gradient_accumulation_steps",
    "bf16",
    "fp16",
)


@dataclass(frozen=True)
class _Boundary:
    """Where a run was at its last boundary: its step, and torch's random stream."""

    step: int
    stream: torch.Tensor


@dataclass(frozen=True)
class _Kept:
    """What was sampled for a run, and what was guessed: it holds if that is so.

    Attributes:
        rows: Prompts and completions, (B, T + new).
        stream: The random stream before; `after` when the last row had ended.
    """

    step: int
    prompts: Prompts
    weights: bytes
    stream: torch.Tensor
    rows: torch.Tensor
    after: torch.Tensor


@dataclass
class Seat:
    """A run that may sample with others.

    Attributes:
        alike: What must be equal for runs to share: base, place in the data, how to sample.
        cycle: Steps from one time of sampling to the next at which it may be parked.
        seconds: That others' samples took in its turns (less than 0), or its own in others' turns;
            `cpu_seconds` of the processor.
    """

    model: Any
    adapter: mixed.Adapter
    alike: tuple[Any, ...]
    rows: int
    cycle: int
    boundary: _Boundary | None = None
    kept: _Kept | None = None
    missed: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def at(self, step: int) -> None:
        """The run is at a boundary; it samples next with what it has there."""
        here = _Boundary(step, torch.get_rng_state())
        self.boundary = None if is_changed(self.model) else here


class Generations:
    """The runs of one experiment that may sample together. Used by one thread at a time."""

    def __init__(self) -> None:
        self._seats: dict[int, Seat] = {}
        self._bodies: dict[str, nn.Module] = {}
        self._tried: dict[tuple[Any, ...], set[int]] = {}  # widths of prompts
        self._differs: set[tuple[Any, ...]] = set()
        self.taken = 0  # times that a run took what was sampled in another's turn

    def serve(
        self, run: int, trainer: Any, config: RunConfig, base: Base, cycle: int
    ) -> Seat | None:
        """Let a run sample with others; None if it can only sample alone.

        TRL samples by `generate` of the model that trains. It is wrapped; calls that are no
        sampling of a training step go through as they are.

        Args:
            cycle: Steps between two boundaries at which it samples next.
        """
        adapter = plain_adapter(trainer, config, base)
        if adapter is None or 2 * trainer.args.generation_batch_size > mixed.MOST_ROWS:
            return None
        if base.name not in self._bodies:
            self._bodies[base.name] = mixed.body(base)
        if not samples_as(self._bodies[base.name], trainer, adapter):
            return None
        args, model = trainer.args, trainer.model
        alike = (
            base.name,
            trainer.generation_config.to_json_string(),
            len(trainer.train_dataset),
            *(getattr(args, name, None) for name in _ALIKE),
        )
        seat = Seat(model, adapter, alike, args.generation_batch_size, cycle)
        original: Generate = model.generate

        def generate(*given: Any, **inputs: Any) -> torch.Tensor:
            asked = set(inputs) == {"input_ids", "attention_mask", "generation_config"}
            if given or not asked or not model.training or seat.boundary is None:
                return original(*given, **inputs)
            prompts = Prompts(
                inputs["input_ids"],
                inputs["attention_mask"],
                copy.deepcopy(inputs["generation_config"]),  # a callback may change it later
                copy.deepcopy(model.generation_config),
            )
            return self._sample(seat, prompts, original)

        model.generate = generate
        self._seats[run] = seat
        return seat

    def cycle(self, run: int) -> int | None:
        """Steps after which a run should let others have their turns; None for no such number.

        There is one if another run can sample with it, as far as is known, and is not further from
        it than that.
        """
        seat = self._seats.get(run)
        if seat is None or seat.boundary is None:
            return None
        step, found = seat.boundary.step, (one.boundary for one in self._beside(seat))
        near = any(one is not None and abs(one.step - step) <= seat.cycle for one in found)
        return seat.cycle if near else None

    def settle(self, run: int) -> tuple[float, float]:
        """Seconds, and those of the processor, on a run's account that were not in its turns."""
        seat = self._seats.get(run)
        if seat is None:
            return 0.0, 0.0
        told = seat.seconds, seat.cpu_seconds
        seat.seconds = seat.cpu_seconds = 0.0
        return told

    def forget(self, run: int) -> None:
        """Let go of a run that ends, and of what is kept for it."""
        self._seats.pop(run, None)

    def clear(self) -> None:
        """Let go of all."""
        self._seats.clear()
        self._bodies.clear()

    def _beside(self, seat: Seat) -> list[Seat]:
        """Other runs that may sample with one, as far as is known."""
        if _shape(seat) in self._differs or seat.missed >= MOST_MISSES:
            return []
        others = [one for one in self._seats.values() if one is not seat]
        return [one for one in others if one.alike == seat.alike and one.missed < MOST_MISSES]

    def _sample(self, seat: Seat, prompts: Prompts, original: Generate) -> torch.Tensor:
        """What a run samples: taken if it is there already, else with others, else alone."""
        here, kept = seat.boundary, seat.kept
        seat.boundary = seat.kept = None
        assert here is not None
        stream, rows, changed = torch.get_rng_state(), None, is_changed(seat.model)
        if kept is not None and not changed:
            rows = self._take(seat, kept, here.step, prompts, stream)
        if rows is None and not changed:
            guesses = _guesses(here.stream, stream, self._waiting(seat, here.step, prompts))
            rows = self._lead(seat, stream, guesses, prompts, original) if guesses else None
        if rows is None:
            rows = original(
                input_ids=prompts.ids,
                attention_mask=prompts.mask,
                generation_config=prompts.config,
            )
        return rows

    def _take(
        self, seat: Seat, kept: _Kept, step: int, prompts: Prompts, stream: torch.Tensor
    ) -> torch.Tensor | None:
        """What was sampled for a run in another's turn; None if it was guessed wrong."""
        if not _holds(kept, step, prompts, stream, seat.adapter):
            seat.missed += 1
            return None
        torch.set_rng_state(kept.after)
        self.taken += 1
        seat.missed = 0
        return kept.rows

    def _waiting(self, seat: Seat, step: int, prompts: Prompts) -> list[Seat]:
        """Runs that wait before this step and are guessed to be given these prompts."""
        most = mixed.runs_at_once([tuple(row) for row in prompts.ids.tolist()], len(prompts.ids))
        found = [
            one
            for one in self._beside(seat)
            if one.kept is None and one.boundary is not None and one.boundary.step == step
        ]
        return found[: most - 1]

    def _lead(
        self,
        seat: Seat,
        stream: torch.Tensor,
        guesses: Sequence[tuple[Seat, _Boundary]],
        prompts: Prompts,
        original: Generate,
    ) -> torch.Tensor | None:
        """Sample for several runs and keep what is the others'; None if that changes bits."""
        started, computed = time.monotonic(), time.process_time()
        body = self._bodies[seat.alike[0]]
        body.generation_config = copy.deepcopy(prompts.defaults)
        adapters = [seat.adapter, *(other.adapter for other, _ in guesses)]
        try:
            if not self._keeps_bits(seat, len(adapters), body, prompts, original):
                return None
            with mixed.mixing(body, adapters):
                own, *theirs = sampled(body, prompts, [stream, *(at.stream for _, at in guesses)])
        except Exception:  # what is wrong shows when it samples alone, if at all
            logger.debug("runs sample alone", exc_info=True)
            self._differs.add(_shape(seat))
            return None
        finally:
            spent = time.monotonic() - started, time.process_time() - computed
            _charge(seat, [other for other, _ in guesses], *spent)
        for (other, at), (rows, after) in zip(guesses, theirs, strict=True):
            weights = _digest(other.adapter)
            other.kept = _Kept(at.step, prompts, weights, at.stream, rows, after)
        rows, after = own
        torch.set_rng_state(after)
        return rows

    def _keeps_bits(
        self, seat: Seat, runs: int, body: Any, prompts: Prompts, original: Generate
    ) -> bool:
        """Whether a run's logits are the same alone and in each place of a shared batch.

        A shape that is new is tried with the run's own model: the first through all of its tokens,
        other widths of prompts through the prompt's forward and one with a cache. The length of the
        cache concerns attention alone, which is computed as it is alone.
        """
        width, most = prompts.ids.shape[1], int(prompts.config.max_new_tokens)
        known = self._tried.setdefault((*_shape(seat), runs, bool(prompts.mask.all())), set())
        if width in known:
            return True
        tokens = min(TRIED_TOKENS, most) if known else most
        alone, drew = without_drawing(lambda: first_logits(original, prompts, tokens))
        with mixed.mixing(body, [seat.adapter] * runs):
            together = first_logits(body.generate, prompts, tokens, runs)
        if drew or together != [rows * runs for rows in alone]:
            self._differs.add(_shape(seat))
            return False
        known.add(width)
        return True


def _shape(seat: Seat) -> tuple[Any, ...]:
    """What decides whether a base gives the same bits for more rows."""
    return seat.alike[0], seat.rows, torch.get_num_threads()


def _digest(adapter: mixed.Adapter) -> bytes:
    """What an adapter's weights are."""
    digest = hashlib.blake2b(digest_size=16)
    for name, layer in adapter.layers.items():
        digest.update(f"{name} {layer.scaling[layer.active_adapters[0]]}".encode())
        for part in (layer.lora_A, layer.lora_B):
            for weights in part.parameters():
                digest.update(weights.detach().contiguous().view(torch.uint8).numpy())
    return digest.digest()


def _holds(
    kept: _Kept, step: int, prompts: Prompts, stream: torch.Tensor, adapter: mixed.Adapter
) -> bool:
    """Whether what was guessed of a run is so."""
    return (
        kept.step == step
        and torch.equal(kept.stream, stream)
        and kept.prompts.equal(prompts)
        and kept.weights == _digest(adapter)
    )


def _guesses(
    before: torch.Tensor, now: torch.Tensor, waiting: Sequence[Seat]
) -> list[tuple[Seat, _Boundary]]:
    """With which streams others will sample, if they move as this run's did since its boundary.

    At an epoch's start a DataLoader draws a number; nothing else is known to draw. None if
    something did.
    """
    there = [(one, one.boundary) for one in waiting if one.boundary is not None]
    for draws in (0, 1):
        if torch.equal(_after_loader(before, draws), now):
            return [(o, _Boundary(b.step, _after_loader(b.stream, draws))) for o, b in there]
    return []


def _after_loader(stream: torch.Tensor, draws: int) -> torch.Tensor:
    generator = torch.Generator()
    generator.set_state(stream)
    for _ in range(draws):
        torch.empty((), dtype=torch.int64).random_(generator=generator)
    return generator.get_state()


def _charge(seat: Seat, others: Sequence[Seat], seconds: float, cpu_seconds: float) -> None:
    """Charge each run for its share."""
    share, cpu_share = seconds / (1 + len(others)), cpu_seconds / (1 + len(others))
    for one in others:
        one.seconds += share
        one.cpu_seconds += cpu_share
    seat.seconds -= share * len(others)
    seat.cpu_seconds -= cpu_share * len(others)
