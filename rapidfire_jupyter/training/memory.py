"""Memory that was freed, given back to the system.

Each run's thread has a malloc arena of its own, and glibc keeps what was freed in an arena for the
next allocation there: for a parked run, the activations of its last step.
"""

import ctypes
import functools
from collections.abc import Callable


def give_back() -> None:
    """Give freed memory back to the system, on glibc; some milliseconds for some 100 MB."""
    trim = _trim()
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # another C library, or another system
        return None
