"""Reports in plain text: how an experiment stands, and whether training has what it needs."""

import contextlib
import importlib.util
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from rapidfire_jupyter import __version__
from rapidfire_jupyter.experiment import Experiment
from rapidfire_jupyter.state import ACTIVE

BOUNDS = {
    "torch": "2.6",
    "transformers": "5.24",
    "trl": "1.16",
    "peft": "0.21",
    "accelerate": "1.15",
    "datasets": "5.2",
}
if sys.version_info < (3, 11):  # the last releases that take Python 3.10
    BOUNDS.update(transformers="5.20.2", trl="1.14.2")


def status_text(exp: Experiment) -> str:
    """An experiment in a line, one on what it costs, and a line for each failed run."""
    runs = [run for run in exp.state.runs.values() if run.status != "deleted"]
    counts = Counter(run.status for run in runs)
    line = f"{exp.name}: {exp.status}; {len(runs)} run{'' if len(runs) == 1 else 's'}"
    if counts:
        line += f" ({', '.join(f'{number} {status}' for status, number in counts.items())})"
    active = [run for run in runs if run.status in ACTIVE]
    if active and all(run.total_steps for run in active):
        done, total = sum(r.step for r in active), sum(r.total_steps or 0 for r in active)
        line += f"; step {done} of {total}"
    priced = [f"  cost: {price}"] if (price := exp.runs.cost()) else []
    failed = [f"  run {run.id} failed: {run.error}" for run in runs if run.status == "failed"]
    return "\n".join([line, *priced, *failed])


def doctor(known: Iterable[Experiment]) -> str:
    """A report on what training needs and how it stands. Imports torch."""
    import torch

    device = torch.accelerator.current_accelerator()
    cuda = device is not None and device.type == "cuda"
    name = torch.cuda.get_device_name() if cuda else str(device or "cpu")
    free_gb = shutil.disk_usage(Path.cwd()).free / 1e9
    shims = {
        "ok": "%load_ext rapidfire works",
        "missing": "is not installed; use %load_ext rapidfire_jupyter",
        "shadowed": "is another package; use %load_ext rapidfire_jupyter",
    }
    state, where = shim()
    lines = [
        f"rapidfire_jupyter {__version__}, Python {sys.version.split()[0]}",
        *version_lines({package: _version(package) for package in BOUNDS}),
        f"device   {name}, {torch.get_num_threads()} threads of {os.cpu_count()} cores",
        *use_lines(cuda, importlib.util.find_spec("pynvml") is not None),
        f"memory   {_memory_text(cuda)}",
        f"numbers  {precision_advice(*_precision_facts(cuda))}",
        f"disk     {free_gb:.1f} GB free in {Path.cwd()}",
        f"shim     {state}: {shims[state]}" + (f" ({where})" if state == "shadowed" else ""),
        lab_line(labextension()),
    ]
    for exp in known:
        alerts = [e.data["text"] for e in exp.events if e.kind == "alert" and "text" in e.data]
        lines += [status_text(exp), *(f"  alert: {text}" for text in alerts[-3:])]
    return "\n".join(lines)


def use_lines(cuda: bool, library: bool) -> list[str]:
    """A line where nothing tells how busy the GPU is.

    Args:
        library: Whether the driver's Python library is installed.
    """
    if not cuda or library:
        return []
    return ["use      not measured: how busy the GPU is needs pip install nvidia-ml-py"]


def _memory_text(cuda: bool) -> str:
    import psutil
    import torch

    ram = psutil.virtual_memory()
    text = f"{ram.available / 1e9:.1f} of {ram.total / 1e9:.1f} GB of RAM free"
    if cuda:
        free, total = torch.cuda.mem_get_info()
        text = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB of the GPU free, {text}"
    return text


def _precision_facts(cuda: bool) -> tuple[str, bool, float]:
    """Kind of device, whether it computes in bf16 natively, and its memory in GB."""
    import psutil
    import torch

    if cuda:
        native = torch.cuda.get_device_capability() >= (8, 0)
        return "cuda", native, torch.cuda.mem_get_info()[1] / 1e9
    ram = psutil.virtual_memory().total / 1e9
    if torch.backends.mps.is_available():
        return "mps", True, ram
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return "cpu", "amx_bf16" in flags or "avx512_bf16" in flags, ram


def precision_advice(kind: str, bf16: bool, memory_gb: float) -> str:
    """Which precision to train in, and how large a model fits with LoRA.

    The weights of a model take 2 bytes a parameter in 16 bit and 0.6 in 4 bit (QLoRA, scales
    included); about a third of the memory is left to adapters and activations. Training all weights
    takes five times their size: the base, the run's own, their gradients and Adam's two moments.

    Args:
        kind: "cuda", "mps" or "cpu".
        bf16: It computes in bf16 natively.
    """
    billions = memory_gb / 1.5
    sizes = f"LoRA up to about {billions / 2:.1f} B parameters in 16 bit"
    if kind == "cuda":
        sizes += f", {billions / 0.6:.0f} B in 4 bit"
    if bf16:
        return f"bf16=True (TRL's default); {sizes}, all weights {billions / 10:.1f} B"
    whole = f"all weights {billions / 20:.1f} B in float32"
    if kind == "cuda":
        return f"fp16=True, bf16=False: this GPU only emulates bf16; {sizes}, {whole}"
    sizes = f"LoRA up to about {billions / 4:.1f} B parameters, {whole}"
    return f"bf16=False: this CPU only emulates bf16, float32 may be quicker; {sizes}"


def version_lines(found: Mapping[str, str | None]) -> list[str]:
    """A line for each package: whether the version found is one we support.

    Args:
        found: Versions by package; None if it is not installed.
    """
    from packaging.version import Version

    lines = []
    for package, least in BOUNDS.items():
        version = found.get(package)
        good = version is not None and Version(version) >= Version(least)
        verdict = "ok      " if good else "missing " if version is None else "too old "
        fix = "" if good else f'; pip install -U "{package}>={least}"'
        lines.append(f"{verdict} {package} {version or '-'} (needs >= {least}){fix}")
    return lines


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def labextension() -> str | None:
    """Version of JupyterLab's extension that this Python has; None if it is not installed."""
    try:
        from jupyter_core.paths import jupyter_path
    except ImportError:
        return None
    for folder in jupyter_path("labextensions"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            text = Path(folder, "rapidfire-jupyter", "package.json").read_text(encoding="utf-8")
            return str(json.loads(text)["version"])
    return None


def lab_line(version: str | None) -> str:
    """A line on JupyterLab's sidebar, status bar and guard."""
    if version is None:
        return (
            "lab      missing: JupyterLab has no sidebar and no guard of live training; install "
            "node, then rapidfire-jupyter again"
        )
    if version != __version__:
        return (
            f"lab      other version: the extension is {version}, the package {__version__}; "
            "install rapidfire-jupyter again"
        )
    return f"lab      ok: extension {version}"


def shim() -> tuple[Literal["ok", "missing", "shadowed"], str]:
    """Whether the module `rapidfire` is ours, and where it is. It is not imported for that."""
    module = sys.modules.get("rapidfire")
    spec = getattr(module, "__spec__", None) or importlib.util.find_spec("rapidfire")
    if spec is None:
        return "missing", ""
    where = spec.origin or ", ".join(spec.submodule_search_locations or ())
    try:
        ours = "rapidfire_jupyter.magics" in Path(where).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        ours = False
    return "ok" if ours else "shadowed", where
