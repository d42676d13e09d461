"""What is process-wide in a kernel and must not leak between runs, or between runs and the user.

A run's thread enters its `RunContext` whenever it may compute and leaves it before it hands the
baton over. Inside, the random streams, default dtype and matmul settings are the run's; outside
they are the user's. Three things are made to depend on the thread, once per process, by `install`:
accelerate's state dicts, tqdm bars, and where stdout, stderr and log records go.

Any: states and settings as torch, numpy, accelerate and tqdm define them.
"""

import logging
import random
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO

import numpy as np
import torch

_thread = threading.local()
_install_lock = threading.Lock()
_installed = False


class RunContext:
    """The process-wide state of one run: swapped in by `enter`, out by `leave`.

    Used by one thread. `moved` names what somebody else changed while this run was inside.
    """

    def __init__(self, log: TextIO) -> None:
        self._log = log
        self._mine: dict[str, Any] | None = None
        self._users: dict[str, Any] = {}
        self.accelerate_state: dict[str, dict[str, Any]] = {}

    def enter(self) -> None:
        """Put this run's state in force; the user's is kept for `leave`."""
        _thread.context = self
        self._users = {"rng": rng_state(), "settings": _settings()}
        if self._mine is not None:
            set_rng_state(self._mine["rng"])
            _apply_settings(self._mine["settings"])
        else:
            _apply_settings({**_settings(), "dtype": torch.float32})

    def leave(self) -> None:
        """Keep this run's state and put the user's in force again."""
        now = _settings()
        entered = self._mine["settings"] if self._mine is not None else now
        self._mine = {"rng": rng_state(), "settings": {**now, "dtype": torch.float32}}
        set_rng_state(self._users["rng"])
        users = self._users["settings"]
        # A setting that is no longer what this run put there was set by the user meanwhile.
        _apply_settings(
            {k: users[k] if now[k] == entered.get(k, now[k]) else now[k] for k in users}
        )
        _thread.context = None

    def write(self, text: str) -> None:
        """Write to this run's log file."""
        self._log.write(text)
        self._log.flush()


def rng_state() -> dict[str, Any]:
    """States of the process's random generators: python, numpy, torch, and CUDA if it is in use."""
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Put back what `rng_state` gave."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])


def stream_moved(before: dict[str, Any]) -> bool:
    """Whether anything drew from the random generators of the process since `before`."""
    now = rng_state()
    cuda = zip(now.get("cuda", ()), before.get("cuda", ()), strict=False)
    return (
        not torch.equal(now["torch"], before["torch"])
        or now["python"] != before["python"]
        or not all(np.array_equal(a, b) for a, b in zip(now["numpy"], before["numpy"], strict=True))
        or not all(torch.equal(a, b) for a, b in cuda)
    )


def _settings() -> dict[str, Any]:
    return {
        "dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul": torch.get_float32_matmul_precision(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
    }


def _apply_settings(settings: dict[str, Any]) -> None:
    now = _settings()
    if settings["dtype"] != now["dtype"]:
        torch.set_default_dtype(settings["dtype"])
    if settings["deterministic"] != now["deterministic"]:
        torch.use_deterministic_algorithms(settings["deterministic"])
    if settings["matmul"] != now["matmul"]:
        torch.set_float32_matmul_precision(settings["matmul"])
    if settings["cudnn_benchmark"] != now["cudnn_benchmark"]:
        torch.backends.cudnn.benchmark = settings["cudnn_benchmark"]


def bind(context: RunContext | None) -> None:
    """Make the calling thread one of `context`'s run, for threads that a run starts."""
    _thread.context = context


def current() -> RunContext | None:
    """The context whose run the calling thread belongs to; None in every other thread."""
    return getattr(_thread, "context", None)


def install() -> None:
    """Make accelerate's state, tqdm and output depend on the thread. Harmless when called again."""
    global _installed
    with _install_lock:
        if not _installed:
            _install_accelerate()
            _install_tqdm()
            _install_thread_inheritance()
            _installed = True
        _install_streams()
        _install_log_filter()


class _StatePerRun:
    """Descriptor in place of an accelerate `_shared_state` dict: each run has its own dict.

    All other threads keep sharing the one dict there was (accelerate ships a similar descriptor,
    `ThreadLocalSharedDict`, which would part the user's threads from each other too).
    """

    def __init__(self, name: str, shared: dict[str, Any]) -> None:
        self._name = name
        self._shared = shared

    def __get__(self, obj: object, owner: type | None = None) -> dict[str, Any]:
        context = current()
        if context is None:
            return self._shared
        return context.accelerate_state.setdefault(self._name, {})

    def __set__(self, obj: object, value: dict[str, Any]) -> None:
        state = self.__get__(obj)
        state.clear()
        state.update(value)


def _install_accelerate() -> None:
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for owner in (PartialState, AcceleratorState, GradientState):
        owner._shared_state = _StatePerRun(owner.__name__, dict(owner._shared_state))


def _install_tqdm() -> None:
    """Turn bars of run threads off; datasets and transformers would draw them in a user's cell."""
    import tqdm.std

    original = tqdm.std.tqdm.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - replaces tqdm's
        if current() is not None:
            kwargs["disable"] = True
        original(self, *args, **kwargs)

    tqdm.std.tqdm.__init__ = __init__


def _install_thread_inheritance() -> None:
    """Threads that a run's thread starts belong to that run."""
    original = threading.Thread.start

    def start(self: threading.Thread) -> None:
        context = current()
        if context is not None:
            run: Callable[[], None] = self.run

            def run_bound() -> None:
                bind(context)
                run()

            self.run = run_bound  # type: ignore[method-assign]
        original(self)

    threading.Thread.start = start  # type: ignore[method-assign]


class _StreamRouter:
    """Stands in for sys.stdout or sys.stderr: text of run threads goes to their run's log."""

    def __init__(self, stream: Any) -> None:  # Any: an ipykernel OutStream or a text file
        self.stream = stream

    def write(self, text: str) -> int:
        context = current()
        if context is None:
            return int(self.stream.write(text) or 0)
        context.write(text)
        return len(text)

    def flush(self) -> None:
        if current() is None:
            self.stream.flush()

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _install_streams() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _StreamRouter):
            setattr(sys, name, _StreamRouter(stream))


class _RunRecordFilter(logging.Filter):
    """Takes log records of run threads off a handler and writes them to the run's log."""

    def filter(self, record: logging.LogRecord) -> bool:
        context = current()
        if context is None:
            return True
        context.write(f"{record.levelname} {record.name}: {record.getMessage()}\n")
        return False


_filter = _RunRecordFilter()
_LIBRARIES = ("transformers", "trl", "peft", "datasets", "accelerate", "torch", "py.warnings")


def _install_log_filter() -> None:
    handlers = [*logging.getLogger().handlers, logging.lastResort]
    for name in _LIBRARIES:
        handlers += logging.getLogger(name).handlers
    for handler in handlers:
        if handler is not None and isinstance(handler, logging.StreamHandler):
            handler.addFilter(_filter)
