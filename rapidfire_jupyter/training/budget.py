"""How much memory a device may hold, as a user says it.

Sizes are bytes, or texts such as "80%", "20 GB" and "512 MiB".
"""

import math
import re
from dataclasses import dataclass

import psutil
import torch

from rapidfire_jupyter.errors import ConfigError

_SIZE = re.compile(r"(\d+(?:\.\d+)?(?:e\d\d?)?)\s*(%|[kmgt]i?b|b)")
_UNITS = {"b": 1, **{p + "b": 1000**n for n, p in enumerate("kmgt", 1)}}
_UNITS |= {p + "ib": 1024**n for n, p in enumerate("kmgt", 1)}


@dataclass(frozen=True)
class Budget:
    """How much may be on the device, and beside it in host memory, in bytes."""

    device_bytes: int
    host_bytes: int


def mib(size_bytes: float) -> str:
    """A size in words."""
    return f"{size_bytes / 2**20:,.1f} MiB"


def mib_apart(more: float, less: float) -> tuple[str, str]:
    """Two sizes in words that differ: where they are near, one is rounded up, the other down."""
    if mib(more) != mib(less):
        return mib(more), mib(less)
    steps = 10 / 2**20
    return mib(math.ceil(more * steps) / steps), mib(math.floor(less * steps) / steps)


def budget(
    device_memory: float | str, host_memory: float | str | None, device: torch.device
) -> Budget:
    """What "80%", "20 GB" or a number of bytes is on this machine.

    Args:
        host_memory: None takes 80 % of what is free; on a CPU nothing, where it is the same memory.

    Raises:
        ConfigError: It is none of these.
    """
    free = int(psutil.virtual_memory().available)
    if host_memory is None:
        host = 0 if device.type == "cpu" else free * 8 // 10
    else:
        host = _bytes("host_memory", host_memory, free)
    whole = _bytes("device_memory", device_memory, device_bytes(device))
    if whole <= 0:
        raise ConfigError(
            f'device_memory must be over 0, got {device_memory!r}; give "80%" or "20 GB"'
        )
    return Budget(whole, host)


def device_bytes(device: torch.device) -> int:
    """All memory of a device; of a CPU the RAM."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory())
    return int(psutil.virtual_memory().total)


def _bytes(name: str, value: float | str, whole: int) -> int:
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
        return number
    match = _SIZE.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    if match is None:
        raise ConfigError(
            f'{name} must be a share such as "80%", a size such as "20 GB", or bytes, got {value!r}'
        )
    count, unit = float(match[1]), match[2]
    if unit == "%" and count > 100:
        raise ConfigError(f'{name} must be at most 100%, got {value!r}; give "80%" or "20 GB"')
    return int(count * (whole / 100 if unit == "%" else _UNITS[unit]))
