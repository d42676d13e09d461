"""What the panel says about the machine: its device, and the memory bar. Never wakes a GPU."""

import os
import platform
import resource
import sys
from pathlib import Path
from typing import Any

from rapidfire_jupyter.ui.wire import Number

_STATM = Path("/proc/self/statm")
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def device() -> str:
    """The GPU that is in use, by its name, else the kind of device."""
    cuda = _cuda()
    if cuda is not None:
        return str(cuda.get_device_name())
    mps = getattr(getattr(sys.modules.get("torch"), "backends", None), "mps", None)
    return "mps" if mps is not None and mps.is_available() else "cpu"


def memory() -> dict[str, Number]:
    """Bytes in use and bytes there are: of the GPU in use, else of this process and the machine."""
    cuda = _cuda()
    if cuda is not None:
        free, total = cuda.mem_get_info()
        return {"used_bytes": float(total - free), "total_bytes": float(total)}
    return {"used_bytes": _process_bytes(), "total_bytes": _machine_bytes()}


def _cuda() -> Any:  # Any: torch.cuda
    """torch.cuda, if training has begun to use it; None otherwise."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _process_bytes() -> float:
    try:
        pages = int(_STATM.read_text().split()[1])
        return float(pages * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return float(peak if platform.system() == "Darwin" else peak * 1024)


def _machine_bytes() -> Number:
    """Memory of the machine, or of the container it is limited to."""
    try:
        total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (OSError, ValueError):
        return None
    for file in _LIMITS:
        try:
            total = min(total, float(file.read_text()))
        except (OSError, ValueError):  # none, or "max"
            continue
    return total
