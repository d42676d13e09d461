"""Make what is one per process depend on the thread, once: what a run's thread does is the run's.

accelerate's state dicts, the functions that seed or set the default dtype, threads that a run
starts, and (in `output.py`) where text goes.

Any: states as torch, numpy and accelerate define them.
"""

import functools
import random
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch

from rapidfire_jupyter.isolation import cells
from rapidfire_jupyter.training import context, output

_install_lock = threading.Lock()
_installed = False


def install() -> None:
    """Make what is process-wide depend on the thread. Harmless when called again."""
    global _installed
    with _install_lock:
        if not _installed:
            _import_trainers()
            _install_accelerate()
            _install_setters()
            _install_thread_inheritance()
            output.install()
            cells.in_run = lambda: context.current() is not None
            _installed = True
        output.route_streams()


def _import_trainers() -> None:
    """Import now what would draw from the user's streams when it is first used (rich does)."""
    streams = context.rng_state()
    import trl

    for name in ("SFTTrainer", "DPOTrainer", "GRPOTrainer"):
        getattr(trl, name)
    context.set_rng_state(streams)


# ------------------------------------------------------------------------------ accelerate's state


class _StatePerRun:
    """Descriptor in place of an accelerate `_shared_state` dict: each run has its own dict.

    All other threads keep sharing the one dict there was (accelerate ships a similar descriptor,
    `ThreadLocalSharedDict`, which would part the user's threads from each other too).
    """

    def __init__(self, name: str, shared: dict[str, Any]) -> None:
        self._name = name
        self._shared = shared

    def __get__(self, obj: object, owner: type | None = None) -> dict[str, Any]:
        own = context.current()
        if own is None:
            return self._shared
        return own.accelerate_state.setdefault(self._name, {})

    def __set__(self, obj: object, value: dict[str, Any]) -> None:
        state = self.__get__(obj)
        state.clear()
        state.update(value)


def _install_accelerate() -> None:
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for owner in (PartialState, AcceleratorState, GradientState):
        owner._shared_state = _StatePerRun(owner.__name__, dict(owner._shared_state))


# ------------------------------------------------------- what user's threads set beside a run

_SETTERS: tuple[tuple[str, ModuleType, str], ...] = (
    ("python", random, "seed"),
    ("python", random, "setstate"),
    ("numpy", np.random, "seed"),
    ("numpy", np.random, "set_state"),
    ("torch", torch, "manual_seed"),
    ("torch", torch, "seed"),
    ("torch", torch, "set_rng_state"),
    ("torch", torch.random, "manual_seed"),
    ("torch", torch.random, "seed"),
    ("torch", torch.random, "set_rng_state"),
)
_KEYS = {"python": ("python",), "numpy": ("numpy",), "torch": ("torch", "cuda", "mps")}


def _install_setters() -> None:
    """Notice which thread seeds, or sets the default dtype; they do what they did."""
    for stream, module, name in _SETTERS:
        setattr(module, name, _noticing_stream(stream, getattr(module, name)))
    torch.set_default_dtype = _noticing_dtype(torch.set_default_dtype)


def _noticing_stream(stream: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def setter(*args: Any, **kwargs: Any) -> Any:
        with context.swap:
            inside = context.inside() if context.current() is None else None
            if inside is None:
                return original(*args, **kwargs)
            before = context.rng_state()
            result = original(*args, **kwargs)
            after = context.rng_state()
            keys = [k for k in _KEYS[stream] if k in before]
            inside.users_stream(stream, {k: before[k] for k in keys}, after)
            return result

    return setter


def _noticing_dtype(original: Callable[[torch.dtype], None]) -> Callable[[torch.dtype], None]:
    @functools.wraps(original)
    def set_default_dtype(d: torch.dtype) -> None:
        if context.current() is not None:
            original(d)
            return
        with context.swap:
            before = torch.get_default_dtype()
            original(d)
            context.dtype_was_set(before, torch.get_default_dtype())

    return set_default_dtype


# ------------------------------------------------------------------------------------------ threads


def _install_thread_inheritance() -> None:
    """Threads that a run's thread starts belong to that run."""
    original = threading.Thread.start

    def start(self: threading.Thread) -> None:
        own = context.current()
        if own is not None:
            run: Callable[[], None] = self.run

            def run_bound() -> None:
                context.bind(own)
                output.route_displays()
                run()

            self.run = run_bound  # type: ignore[method-assign]
        original(self)

    threading.Thread.start = start  # type: ignore[method-assign]
