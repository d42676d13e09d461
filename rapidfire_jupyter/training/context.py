"""What is process-wide in a kernel and must not leak between runs, or between runs and the user.

A run's thread enters its `RunContext` whenever it may compute and leaves it before it hands the
baton over. Inside, the random streams, default dtype and matmul settings are the run's; outside
they are the user's. A user's thread that reseeds or sets the default dtype while a run is inside is
noticed: what it set stays the user's, and the run goes on where its own stream was. Made to depend
on the thread, once per process, by `install`: accelerate's state dicts, tqdm bars, and where
stdout, stderr, log records and displays go.

Any: states and settings as torch, numpy, accelerate and tqdm define them.
"""

import functools
import logging
import random
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, TextIO

import numpy as np
import torch

DTYPE_SECONDS = 2.0  # longest wait for a user's thread to set the default dtype back

_thread = threading.local()
_install_lock = threading.Lock()
_installed = False
_swap = threading.RLock()  # held while process-wide state is swapped, or set by a user's thread
_inside: "RunContext | None" = None  # whose state is in force; None while it is the user's


class RunContext:
    """The process-wide state of one run: swapped in by `enter`, out by `leave`.

    Used by one thread, but for what a user's thread does while this run is inside.
    """

    def __init__(self, log: TextIO) -> None:
        self._log = log
        self._mine: dict[str, Any] | None = None
        self._users: dict[str, Any] = {}
        self._entered: dict[str, Any] = {}
        self._displaced: dict[str, Any] = {}  # our streams that a user's thread has set anew
        self._users_dtype: torch.dtype | None = None  # set by a user's thread meanwhile
        self._touched: set[str] = set()
        self.accelerate_state: dict[str, dict[str, Any]] = {}

    def enter(self) -> None:
        """Put this run's state in force; the user's is kept for `leave`."""
        global _inside
        _route_displays()
        _wait_for_default_dtype()
        with _swap:
            _thread.context = _inside = self
            self._users = {"rng": rng_state(), "settings": _settings()}
            self._displaced, self._users_dtype = {}, None
            if self._mine is not None:
                set_rng_state(self._mine["rng"])
                _apply_settings(self._mine["settings"])
            else:
                _apply_settings({**_settings(), "dtype": torch.float32})
            self._entered = _settings()

    def leave(self) -> None:
        """Keep this run's state and put the user's in force again."""
        global _inside
        with _swap:
            now, streams = _settings(), rng_state()
            first, users = self._mine is None, self._users["settings"]
            # In its first turn a run may change settings itself (tf32, full_determinism). Later,
            # one that is no longer what this run put there was set by the user meanwhile.
            if not first:
                users = {k: v if now[k] == self._entered[k] else now[k] for k, v in users.items()}
            users["dtype"] = self._users_dtype or self._users["settings"]["dtype"]
            mine = {**(now if first else self._entered), "dtype": torch.float32}
            self._mine = {"rng": {**streams, **self._displaced}, "settings": mine}
            kept = {k: v for k, v in self._users["rng"].items() if k not in self._displaced}
            set_rng_state({**streams, **kept})
            _apply_settings(users)
            _thread.context = _inside = None

    def touched(self) -> tuple[str, ...]:
        """What user's threads have set while this run was inside, in words; asked once."""
        with _swap:
            touched, self._touched = sorted(self._touched), set()
        return tuple(touched)

    def users_stream(self, stream: str, before: dict[str, Any], after: dict[str, Any]) -> None:
        """A user's thread has set a stream while this run is inside."""
        self._touched.add(f"the random stream of {stream}")
        for key, state in before.items():
            if key in self._displaced and _same_state(self._displaced[key], after[key]):
                del self._displaced[key]  # put back, as fork_rng does
            else:
                self._displaced.setdefault(key, state)

    def users_dtype(self, dtype: torch.dtype) -> None:
        """A user's thread has set the default dtype while this run is inside."""
        self._touched.add("the default dtype")
        self._users_dtype = dtype if dtype != self._entered["dtype"] else None

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
    return not all(_same_state(now[key], state) for key, state in before.items())


def _same_state(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, list | tuple) and len(one) == len(other):
        return all(_same_state(a, b) for a, b in zip(one, other, strict=True))
    return bool(np.array_equal(one, other))


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
    """Make what is process-wide depend on the thread. Harmless when called again."""
    global _installed
    with _install_lock:
        if not _installed:
            _import_trainers()
            _install_accelerate()
            _install_setters()
            _install_tqdm()
            _install_thread_inheritance()
            _install_redirection()
            _installed = True
        _install_streams()
        _install_log_filter()


def _import_trainers() -> None:
    """Import now what would draw from the user's streams when it is first used (rich does)."""
    streams = rng_state()
    import trl

    for name in ("SFTTrainer", "DPOTrainer", "GRPOTrainer"):
        getattr(trl, name)
    set_rng_state(streams)


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
_KEYS = {"python": ("python",), "numpy": ("numpy",), "torch": ("torch", "cuda")}
_home_dtype: torch.dtype | None = None  # what a user's thread may set the default dtype back to
_dtype_is_home = threading.Event()
_dtype_is_home.set()


def _install_setters() -> None:
    """Notice which thread seeds, or sets the default dtype; they do what they did."""
    for stream, module, name in _SETTERS:
        setattr(module, name, _noticing_stream(stream, getattr(module, name)))
    torch.set_default_dtype = _noticing_dtype(torch.set_default_dtype)


def _noticing_stream(stream: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def setter(*args: Any, **kwargs: Any) -> Any:
        with _swap:
            inside = _inside if current() is None else None
            if inside is None:
                return original(*args, **kwargs)
            before = rng_state()
            result = original(*args, **kwargs)
            after = rng_state()
            keys = [k for k in _KEYS[stream] if k in before]
            inside.users_stream(stream, {k: before[k] for k in keys}, after)
            return result

    return setter


def _noticing_dtype(original: Callable[[torch.dtype], None]) -> Callable[[torch.dtype], None]:
    @functools.wraps(original)
    def set_default_dtype(d: torch.dtype) -> None:
        global _home_dtype
        if current() is not None:
            original(d)
            return
        with _swap:
            before = torch.get_default_dtype()
            original(d)
            now = torch.get_default_dtype()
            if _dtype_is_home.is_set() and now != before:
                _home_dtype = before
                _dtype_is_home.clear()
            elif now == _home_dtype:
                _dtype_is_home.set()
            if _inside is not None and now != before:
                _inside.users_dtype(now)

    return set_default_dtype


def _wait_for_default_dtype() -> None:
    """Do not come between a user's thread and its default dtype.

    `from_pretrained` sets it for the moment in which it builds a model: changed under its hands,
    half of the model would have another dtype. What is not set back in time is there to stay.
    """
    if not _dtype_is_home.wait(DTYPE_SECONDS):
        _dtype_is_home.set()


# ----------------------------------------------------------------------------------- bars, threads


def _install_tqdm() -> None:
    """Turn bars of run threads off; datasets and transformers would draw them in a user's cell."""
    import tqdm.std

    original = tqdm.std.tqdm.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - replaces tqdm's
        context = current()
        if context is None or kwargs.get("disable"):
            original(self, *args, **kwargs)
            return
        original(self, *args, **{**kwargs, "disable": True})
        what = kwargs.get("desc") or (args[1] if len(args) > 1 else None) or "progress bar"
        context.write(f"{what}: {self.total or '?'} {kwargs.get('unit', 'it')}\n")

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
                _route_displays()
                run()

            self.run = run_bound  # type: ignore[method-assign]
        original(self)

    threading.Thread.start = start  # type: ignore[method-assign]


# ------------------------------------------------------------------------------------------- output


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


def _install_redirection() -> None:
    """Keep text of run threads out of what `redirect_stdout` and `%%capture` collect for a cell."""
    from contextlib import redirect_stderr, redirect_stdout

    owners: list[Any] = [redirect_stdout, redirect_stderr]
    if "IPython" in sys.modules:
        from IPython.core.displaypub import CapturingDisplayPublisher
        from IPython.utils.capture import capture_output

        owners.append(capture_output)
        publish = CapturingDisplayPublisher.publish
        CapturingDisplayPublisher.publish = _taking_displays(publish)  # type: ignore[method-assign]
    for owner in owners:
        owner.__enter__ = _routing(owner.__enter__)


def _routing(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def __enter__(self: Any) -> Any:  # noqa: N807 - replaces that of a context manager
        result = original(self)
        _install_streams()
        return result

    return __enter__


class _RunRecordFilter(logging.Filter):
    """Takes log records of run threads off a handler and writes them to the run's log, once."""

    _format = logging.Formatter("%(levelname)s %(name)s: %(message)s")

    def filter(self, record: logging.LogRecord) -> bool:
        context = current()
        if context is None:
            return True
        if not hasattr(record, "rapidfire_written"):
            record.rapidfire_written = True
            try:
                text = self._format.format(record)
            except (TypeError, ValueError, KeyError):  # its arguments do not fit its message
                text = f"{record.levelname} {record.name}: {record.msg} {record.args}"
            context.write(f"{text}\n")
        return False


_filter = _RunRecordFilter()


def _install_log_filter() -> None:
    """Filter every handler that writes to a console; a user's log files stay as they are."""
    loggers = [logging.getLogger(), *logging.getLogger().manager.loggerDict.values()]
    handlers = [h for one in loggers if isinstance(one, logging.Logger) for h in one.handlers]
    for handler in (*handlers, logging.lastResort):
        console = isinstance(handler, logging.StreamHandler)
        if console and not isinstance(handler, logging.FileHandler) and handler is not None:
            handler.addFilter(_filter)


def _route_displays() -> None:
    """Keep what the calling thread displays (tables, figures) out of cells; its text is logged."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    publisher: Any = getattr(shell, "display_pub", None)
    if hasattr(publisher, "register_hook") and getattr(_thread, "publisher", None) is not publisher:
        publisher.register_hook(_take_display)
        _thread.publisher = publisher


def _take_display(message: dict[str, Any]) -> dict[str, Any] | None:
    """What a kernel's publisher calls with each message; None keeps it from being sent."""
    if current() is None:
        return message
    _log_display(message["content"].get("data", {}))
    return None


def _taking_displays(publish: Callable[..., None]) -> Callable[..., None]:
    """Keep displays of run threads out of what `%%capture` collects for a cell."""

    @functools.wraps(publish)
    def taking(self: Any, data: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        if current() is None:
            publish(self, data, *args, **kwargs)
        else:
            _log_display(data)

    return taking


def _log_display(data: dict[str, Any]) -> None:
    context, text = current(), data.get("text/plain")
    if context is not None and text:
        context.write(f"{text}\n")
