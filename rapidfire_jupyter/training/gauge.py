"""What a run does in a slice besides computing: tokens trained on, waiting for batches, the device.

Any: TRL trainers and their batches.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

BETWEEN_SAMPLES = 0.5  # seconds; the driver's own figure is a mean over about as long


@dataclass(frozen=True)
class Reading:
    """What was measured between two boundaries.

    Attributes:
        tokens: Trained on, without padding; 0 if the trainer does not say.
        fetch_seconds: Spent waiting for batches.
        utilisations: Shares of the time in which the device computed, from 0 to 1, sampled.
    """

    tokens: int = 0
    fetch_seconds: float = 0.0
    utilisations: tuple[float, ...] = ()

    def __add__(self, other: "Reading") -> "Reading":
        return Reading(
            self.tokens + other.tokens,
            self.fetch_seconds + other.fetch_seconds,
            self.utilisations + other.utilisations,
        )

    def facts(self) -> dict[str, float]:
        """What is known, by the names of `measures.Slice`."""
        found: dict[str, float] = {"fetch_seconds": self.fetch_seconds}
        if self.tokens:
            found["tokens"] = self.tokens
        if self.utilisations:
            found["utilisation"] = sum(self.utilisations) / len(self.utilisations)
        return found


class Gauge:
    """Measures one trainer, in its thread. Tokens are added up where the batches are."""

    def __init__(self, trainer: Any) -> None:
        self._state = trainer.state
        self._device = trainer.args.device
        self._fetch: Callable[..., Any] = trainer.get_batch_samples
        trainer.get_batch_samples = self._on_fetch
        self._sampled = 0.0
        self._samples = self._device.type == "cuda"
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self._counted: Any = 0  # int or tensor: no wait for a device until it is read
        self._seen = int(self._state.num_input_tokens_seen)
        self._seconds, self._shares = 0.0, list[float]()

    def _on_fetch(self, *args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        batches, items = self._fetch(*args, **kwargs)
        self._seconds += time.perf_counter() - started
        self._counted = self._counted + sum(map(tokens, batches))
        return batches, items

    def sample(self) -> None:
        """Look at how busy the device is, if that was not done just now."""
        now = time.monotonic()
        if not self._samples or now < self._sampled + BETWEEN_SAMPLES:
            return
        self._sampled = now
        try:
            self._shares.append(torch.cuda.utilization(self._device) / 100)
        except Exception:  # the driver's library is missing, or this device does not say
            self._samples = False

    def read(self) -> Reading:
        """What was measured since the last time."""
        # Trainers that generate fetch prompts, and count tokens themselves.
        seen = int(self._state.num_input_tokens_seen) - self._seen
        found = Reading(int(self._counted) or max(0, seen), self._seconds, tuple(self._shares))
        self.reset()
        return found


def tokens(batch: Any) -> Any:
    """Tokens of a batch without padding, an int or a tensor; 0 for what holds none."""
    if not isinstance(batch, Mapping):
        return 0
    masks = [v for k, v in batch.items() if k.endswith("attention_mask")]
    if masks:
        return _all(masks, torch.Tensor.sum)
    return _all((v for k, v in batch.items() if k.endswith("input_ids")), torch.Tensor.numel)


def _all(parts: Iterable[Any], count: Callable[[torch.Tensor], Any]) -> Any:
    return sum((count(part) for part in parts if isinstance(part, torch.Tensor)), start=0)
