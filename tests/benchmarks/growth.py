"""Resident memory per added LoRA run, measured in a process that does nothing else.

Prints one JSON line. Every run has trained a step and is parked when memory is read, once with the
first runs and once with all of them: what is paid once (imports, base, data) is in both readings.
The process has as many threads as a Jupyter kernel, and so as many of malloc's arenas: a limit of
arenas that is set later has no effect in either.
"""

import gc
import json
import sys
import threading
import time

KERNEL_THREADS = 12
for _ in range(KERNEL_THREADS):
    threading.Thread(target=threading.Event().wait, daemon=True).start()

import psutil
import workload

from rapidfire_jupyter import RFLoraConfig, RFModelConfig, RFSFTConfig
from rapidfire_jupyter.engine import engine

MIB = 2**20


def main(size="10M", first="8", last="32"):
    first, last = int(first), int(last)
    work = workload.Work(size, 1, 16)
    config = RFModelConfig(
        str(work.folder),
        peft_config=RFLoraConfig(**workload.LORA),
        training_args=RFSFTConfig(**work.arguments(1e-3)),
    )
    exp = workload.Experiment("growth", root=workload.scratch())
    exp.run_fit(
        [config.copy(seed=seed) for seed in range(first)], work.load, work.train,
        num_chunks=1, seed=workload.SEED, slice_steps=1,
    )  # fmt: skip

    few = parked_bytes(exp, first)
    for seed in range(first, last):
        exp.clone(1, {"seed": seed})
    exp.resume_all()
    many = parked_bytes(exp, last)

    exp.stop(1).wait()
    adapter = (exp.runs[0].checkpoint / "adapter_model.safetensors").stat().st_size
    base = (work.folder / "model.safetensors").stat().st_size
    exp.end()
    figures = {
        "size": size,
        "runs": [first, last],
        "rss_mib": [few / MIB, many / MIB],
        "growth_mib": (many - few) / (last - first) / MIB,
        "adapter_gradient_adam_mib": 4 * adapter / MIB,
        "base_mib": base / MIB,
    }
    print(json.dumps(figures))


def parked_bytes(exp, runs):
    """Wait until each of `runs` runs has trained a step, park them, and read resident memory."""
    while len(exp.runs) < runs or any(run.facts.step == 0 for run in exp.runs):
        assert not any(run.status == "failed" for run in exp.runs), [r.error for r in exp.runs]
        time.sleep(0.02)
    exp.pause_all().wait()
    while engine()._tidied is not None:  # it gives memory back as soon as it is idle
        time.sleep(0.01)
    gc.collect()
    return psutil.Process().memory_info().rss


if __name__ == "__main__":
    main(*sys.argv[1:])
