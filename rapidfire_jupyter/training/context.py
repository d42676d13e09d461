"""What is process-wide in a kernel and must not leak between runs, or between runs and the user.

A run's thread enters its `RunContext` whenever it may compute and leaves it before it hands the
baton over. Inside, the random streams, default dtype and matmul settings are the run's; outside
they are the user's. A user's thread that reseeds or sets the default dtype while a run is inside is
noticed (`process.py` sees to that): what it set stays the user's, and the run goes on where its own
stream was.

Any: states and settings as torch, numpy and accelerate define them.
"""

import random
import threading
from typing import Any, TextIO

import numpy as np
import torch

DTYPE_SECONDS = 2.0  # longest wait for a user's thread to set the default dtype back

_thread = threading.local()
swap = threading.RLock()  # held while process-wide state is swapped, or set by a user's thread
_inside: "RunContext | None" = None  # whose state is in force; None while it is the user's
_home_dtype: torch.dtype | None = None  # what a user's thread may set the default dtype back to
_dtype_is_home = threading.Event()
_dtype_is_home.set()


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
        _wait_for_default_dtype()
        with swap:
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
        with swap:
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
        with swap:
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

    @property
    def is_over(self) -> bool:
        """Whether the run's thread has ended; threads that it started are the user's then."""
        return self._log.closed

    def write(self, text: str) -> None:
        """Write to this run's log file."""
        self._log.write(text)
        self._log.flush()


def rng_state() -> dict[str, Any]:
    """States of the process's random generators: python, numpy, torch, and those of its devices."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        **device_streams(),
    }


def device_streams() -> dict[str, Any]:
    """States of the generators of CUDA, if it is in use, and of MPS."""
    state: dict[str, Any] = {}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Put back what `rng_state` gave."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])
    if "mps" in state:
        torch.mps.set_rng_state(state["mps"])


def unsaved_streams() -> dict[str, list[int]]:
    """States of generators that Hugging Face's checkpoints lack, for JSON to hold: that of MPS."""
    return {name: state.tolist() for name, state in device_streams().items() if name == "mps"}


def set_unsaved_streams(kept: dict[str, list[int]]) -> None:
    """Put back what `unsaved_streams` gave, where there is such a device."""
    if "mps" in kept and torch.backends.mps.is_available():
        torch.mps.set_rng_state(torch.tensor(kept["mps"], dtype=torch.uint8))


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
    context: RunContext | None = getattr(_thread, "context", None)
    return None if context is None or context.is_over else context


def inside() -> RunContext | None:
    """The context whose state is in force in this process; None while it is the user's."""
    return _inside


def dtype_was_set(before: torch.dtype, now: torch.dtype) -> None:
    """A user's thread has set the default dtype; the caller holds `swap`."""
    global _home_dtype
    if _dtype_is_home.is_set() and now != before:
        _home_dtype = before
        _dtype_is_home.clear()
    elif now == _home_dtype:
        _dtype_is_home.set()
    if _inside is not None and now != before:
        _inside.users_dtype(now)


def _wait_for_default_dtype() -> None:
    """Do not come between a user's thread and its default dtype.

    `from_pretrained` sets it for the moment in which it builds a model: changed under its hands,
    half of the model would have another dtype. What is not set back in time is there to stay.
    """
    if not _dtype_is_home.wait(DTYPE_SECONDS):
        _dtype_is_home.set()
