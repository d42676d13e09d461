"""Resident memory per added LoRA run, measured in a process that does nothing else.

Prints one JSON line. Every run has trained a step and is parked when memory is read, once with the
first runs and once with all of them: what is paid once (imports, base, data) is in both readings.
"""

import gc
import json
import sys
import time

import psutil
import workload

from rapidfire_jupyter import RFLoraConfig, RFModelConfig, RFSFTConfig

MIB = 2**20


def main(size="10M", first="8", last="32"):
    first, last = int(first), int(last)
    work = workload.Work(size, 1, 16)
    given = RFSFTConfig(**work.arguments(1e-3))
    config = RFModelConfig(
        str(work.folder), peft_config=RFLoraConfig(**TARGETS), training_args=given
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

    adapter, live = adapter_bytes(exp)
    exp.end()
    figures = {
        "size": size,
        "runs": [first, last],
        "rss_mib": [few / MIB, many / MIB],
        "growth_mib": (many - few) / (last - first) / MIB,
        "adapter_mib": adapter / MIB,
        "adapter_gradient_adam_mib": live / MIB,
        "base_mib": base_bytes(work) / MIB,
    }
    print(json.dumps(figures))


# Rank 8 everywhere: adapter, gradient and Adam's two moments are 5.3 MiB at 10M parameters.
TARGETS = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"}


def parked_bytes(exp, runs):
    """Wait until each of `runs` runs has trained a step, park them, and read resident memory."""
    while len(exp.runs) < runs or any(run.facts.step == 0 for run in exp.runs):
        assert not any(run.status == "failed" for run in exp.runs), [r.error for r in exp.runs]
        time.sleep(0.02)
    exp.pause_all().wait()
    gc.collect()
    return psutil.Process().memory_info().rss


def adapter_bytes(exp):
    """Bytes of one run's adapter, and of adapter, gradient and both moments of Adam."""
    exp.stop(1).wait()
    weights = exp.runs[0].checkpoint / "adapter_model.safetensors"
    size = weights.stat().st_size
    return size, 4 * size


def base_bytes(work):
    return (work.folder / "model.safetensors").stat().st_size


if __name__ == "__main__":
    main(*sys.argv[1:])
