"""Memory as it is: how much is used, whether an error says that it ran out, and giving it back.

Each run's thread has a malloc arena of its own, and glibc keeps what was freed in an arena for the
next allocation there: for a parked run, the activations of its last step. torch does the same on a
GPU; its cache is emptied only when memory is short, since filling it again costs time.
"""

import ctypes
import functools
import gc
import os
import traceback
from collections.abc import Callable, Iterator
from typing import Literal

import psutil
import torch

Phase = Literal["", "training", "generation", "evaluation"]

_SCARCE = 0.1  # share of a GPU's memory that is free, below which torch's cache is emptied

# How allocators say it where torch raises a plain RuntimeError: on a CPU, MPS, and in cuBLAS.
_WORDS = (
    "not enough memory",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def give_back() -> None:
    """Give freed memory back to the system, on glibc; some milliseconds for some 100 MB."""
    trim = _trim()
    if trim is not None:
        trim(0)


def ease(ran_out: bool) -> None:
    """After a run's end: give the GPU's unused cache to others, if memory is short.

    Args:
        ran_out: The run ended since memory ran out; garbage is collected then, too.
    """
    if ran_out:
        gc.collect()
        give_back()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        free, total = torch.cuda.mem_get_info()
        if ran_out or free < _SCARCE * total:
            torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        total = torch.mps.recommended_max_memory()
        if ran_out or total - torch.mps.driver_allocated_memory() < _SCARCE * total:
            torch.mps.empty_cache()


def takes_activations() -> bool:
    """Whether activations can go to host memory meanwhile: TRL needs a stream, which MPS lacks."""
    device = torch.accelerator.current_accelerator()
    return device is not None and hasattr(torch.get_device_module(device), "Stream")


def exhausted(error: BaseException) -> Phase:
    """In which phase memory ran out, if that is what an error, or its cause, says; else ""."""
    for one in _causes(error):
        by_kind = isinstance(one, torch.OutOfMemoryError | MemoryError)
        by_words = isinstance(one, RuntimeError) and any(word in str(one) for word in _WORDS)
        if by_kind or by_words:
            calls = {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}
            if "evaluation_loop" in calls:
                return "evaluation"
            return "generation" if calls & {"generate", "generate_batch"} else "training"
    return ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__


def process_bytes() -> int:
    """Memory of this process that is in RAM now."""
    return int(_process(os.getpid()).memory_info().rss)


@functools.cache
def _process(pid: int) -> psutil.Process:  # making one reads several files
    return psutil.Process(pid)


def begin_peak() -> None:
    """Measure the peak of the device's memory from now on."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.reset_peak_memory_stats()


def peak_bytes() -> int | None:
    """Most memory of the device in use since `begin_peak`; None where the device does not tell."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return int(torch.cuda.max_memory_allocated())
    return None


@functools.cache
def _trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # another C library, or another system
        return None
