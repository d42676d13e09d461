"""What must hold on a GPU, in one script: under five minutes, no network, random weights.

    python tests/gpu/check.py            on the GPU there is
    python tests/gpu/check.py --cpu      the same on a CPU, as far as it can, with small models

Each line says pass or FAIL, what was checked and the figures; the exit status is 1 if one failed.
"""

import argparse
import os
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # torch's deterministic mode asks for it
TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / part) for part in (".", "..", "benchmarks", "gpu")]
if "--cpu" in sys.argv:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import oracle
import packages
import scarce
import tiny
import torch
from transformers import TrainerCallback

from rapidfire_jupyter import Experiment, RFLoraConfig, RFModelConfig, RFSFTConfig
from rapidfire_jupyter.waiting import until

MIB = 2**20


@dataclass(frozen=True)
class Machine:
    """Where it runs, and how large its models are."""

    cuda: bool
    model: dict
    wide: dict
    rows: int
    batch: int


def machine(cpu):
    if not cpu and not torch.cuda.is_available():
        sys.exit("no CUDA device found; --cpu checks on the CPU what it can")
    if cpu:
        torch.set_num_threads(1)
        return Machine(False, {"hidden": 32, "layers": 2}, {"hidden": 64, "layers": 2}, 24, 4)
    model, wide = {"hidden": 512, "layers": 8}, {"hidden": 768, "layers": 8}
    return Machine(True, model, wide, 192, 8)


class Checks:
    """Runs the checks and prints their lines."""

    def __init__(self, here, folder, out):
        self.here, self.folder, self.out = here, folder, out
        self.failed = self.made = 0

    def line(self, good, what, figures=""):
        """Print a verdict; None only tells."""
        self.failed += good is False
        verdict = "info" if good is None else "pass" if good else "FAIL"
        print(f"{verdict}  {what:<48} {figures}".rstrip(), file=self.out, flush=True)

    def run(self, check):
        started = time.monotonic()
        try:
            check(self)
        except Exception:
            self.line(False, check.__name__, traceback.format_exc())
        self.line(None, check.__name__, f"{time.monotonic() - started:.0f} s")

    def fit(self, configs, chunks=3, **more):
        """Train configs in an experiment of their own until they end."""
        self.made += 1
        exp = Experiment(f"check-{self.made}", root=self.folder)
        rows = tiny.sft_rows(self.here.rows)
        more = {"num_chunks": chunks, "panel": False, **more}
        exp.run_fit(configs, tiny.create_model, rows, **more)
        return exp

    def config(self, seed=1, model=None, lora=None, **given):
        args = {
            "learning_rate": 1e-3,
            "per_device_train_batch_size": self.here.batch,
            "num_train_epochs": 1,
            "logging_steps": 1,
            "full_determinism": True,
            **given,
        }
        return RFModelConfig(
            "random",
            peft_config=RFLoraConfig(
                **{"r": 8, "lora_dropout": 0.1, "target_modules": "all-linear", **(lora or {})}
            ),
            training_args=RFSFTConfig(**args),
            model_kwargs=model or self.here.model,
            seed=seed,
        )


def completed(exp):
    bad = [run.trace or run.status for run in exp.runs if run.status != "completed"]
    assert not bad, bad[0]


def difference(one, other):
    """The largest difference of two runs' weights."""
    ones, others = one[0], other[0]
    return max(float((ones[n].float() - others[n].float()).abs().max()) for n in ones)


def same(one, other):
    try:
        oracle.assert_same(one, other)
    except AssertionError:
        return False
    return True


def slicing_is_exact(checks):
    """Sliced among others against plain TRL alone, in deterministic mode; and how much without."""
    runs = [checks.config(1), checks.config(2, lora={"r": 16}), checks.config(3, bf16=False)]
    exp = checks.fit(runs, slice_steps=2)
    exp.wait()
    completed(exp)
    for run in exp.runs:
        alone = oracle.plain(run, checks.folder / f"plain-{run.id}")
        figures = f"largest difference {difference(oracle.sliced(run), alone):.1e}"
        checks.line(
            same(oracle.sliced(run), alone), f"run {run.id} sliced equals plain TRL", figures
        )
    exp.end()
    if not checks.here.cuda:
        return
    free = [checks.config(seed, full_determinism=False) for seed in (1, 2)]
    sliced = checks.fit(free, slice_steps=2)
    sliced.wait()
    alone = [checks.fit(free[:1]) for _ in range(2)]
    for one in alone:
        one.wait()
    ended = [oracle.sliced(one.run(1)) for one in (sliced, *alone)]
    by_slicing, by_chance = difference(ended[0], ended[1]), difference(ended[1], ended[2])
    figures = f"sliced-solo {by_slicing:.1e}, solo-solo {by_chance:.1e}"
    checks.line(
        by_slicing <= 2 * by_chance, "without it no further apart than two solo runs", figures
    )
    for one in (sliced, *alone):
        one.end()


def hand_overs_are_quick(checks):
    from bench_handover import Batons, between_slices

    with Batons() as batons:
        exp = checks.fit([checks.config(seed) for seed in (1, 2, 3)], chunks=1, slice_steps=1)
        exp.wait()
    completed(exp)
    gaps, share = between_slices(batons.times, exp.events, 10**9)  # all slices
    gaps.sort()
    middle = gaps[len(gaps) // 2] * 1e3
    figures = f"median {middle:.2f} ms of {len(gaps)}, {100 * share:.1f} % of the time"
    checks.line(middle < 5 if checks.here.cuda else None, "hand-over under 5 ms", figures)
    exp.end()


def moving_is_exact_and_quick(checks):
    """Tensors of an optimizer's size to the host and back, pinned and pageable."""
    from rapidfire_jupyter.training.budget import Budget
    from rapidfire_jupyter.training.residency import Residency

    device = torch.device("cuda" if checks.here.cuda else "cpu")
    count, each = (64, 8 * MIB) if checks.here.cuda else (8, MIB // 4)
    tensors = [torch.randn(each // 4, device=device) for _ in range(count)]
    before = [tensor.cpu() for tensor in tensors]
    there = Residency(device, Budget(count * each, 8 * count * each), checks.folder / "offload")
    there.settle(1, tensors, 0)
    seconds = []
    for _ in range(3):  # the first one makes the host's buffers
        started = time.perf_counter()
        there.make_room(count * each, "others", "others")
        _wait(checks.here)
        middle = time.perf_counter()
        gone = all(bool(tensor.isnan().all()) for tensor in tensors)
        again = time.perf_counter()
        there.admit(1)
        _wait(checks.here)
        seconds.append((middle - started, time.perf_counter() - again))
    back = all(torch.equal(a.cpu(), b) for a, b in zip(tensors, before, strict=True))
    checks.line(gone and back, "tensors moved away and back are the same")
    pageable = [torch.empty(each // 4) for _ in range(count)]
    started = time.perf_counter()
    for host, tensor in zip(pageable, tensors, strict=True):
        host.copy_(tensor)
    _wait(checks.here)
    slow = time.perf_counter() - started
    out, home = min(s[0] for s in seconds), min(s[1] for s in seconds)
    size = count * each / 2**30
    figures = (
        f"{count * each / MIB:.0f} MiB: out {1e3 * out:.1f} ms ({size / out:.1f} GiB/s), back "
        f"{1e3 * home:.1f} ms ({size / home:.1f} GiB/s); pageable out {slow / out:.1f} x as long"
    )
    quicker = out < slow if checks.here.cuda else None
    checks.line(quicker, "pinned is quicker than pageable", figures)


def a_small_budget_changes_no_number(checks):
    here = checks.here
    runs = [checks.config(n, model) for n in (1, 2) for model in (here.model, here.wide)]
    plenty = checks.fit(runs)
    plenty.wait()
    completed(plenty)
    needed = [run.memory for run in plenty.runs]
    budget = max(m.base + m.own for m in needed) + MIB // 16
    small = checks.fit(runs, device_memory=budget, host_memory="8 GB")
    small.wait()
    completed(small)
    moved = small._fit.executor.moved()
    equal = [
        same(oracle.sliced(a), oracle.sliced(b))
        for a, b in zip(small.runs, plenty.runs, strict=True)
    ]
    whole = sum(m.own for m in needed) + needed[0].base + needed[1].base
    figures = f"{whole / budget:.1f} x the budget, {moved.in_bytes / MIB:.0f} MiB brought in"
    checks.line(all(equal) and moved.in_bytes > 0, "two bases on a device for one", figures)
    ratio = _trained(small.events) / _trained(plenty.events)
    waited = sum(e.data["moving_seconds"] for e in small.events if e.kind == "slice_ended")
    checks.line(
        None, "time, moved / all resident", f"{ratio:.2f} x; waited {waited:.2f} s in slices"
    )
    small.end()
    plenty.end()


def running_out_of_memory_costs_one_run_its_batch(checks):
    here = checks.here
    if not here.cuda:
        exp = Experiment("out-of-memory", root=checks.folder)
        runs = [scarce.config(8, 1, {"most": 3}), scarce.config(4, 1)]
        exp.run_fit(
            runs, scarce.small_device, tiny.sft_rows(16), num_chunks=2, block=True, panel=False
        )
    else:
        rows = [{"text": " ".join([tiny.sentence(n, 12)] * 20)} for n in range(256)]
        large = checks.config(1, per_device_train_batch_size=128, gradient_checkpointing=False)
        little = checks.config(2, per_device_train_batch_size=4)
        probe = Experiment("probe", root=checks.folder)
        one = checks.config(1, per_device_train_batch_size=8, gradient_checkpointing=False)
        probe.run_fit(one, tiny.create_model, rows, num_chunks=1, block=True, panel=False)
        needed = probe.run(1).memory
        probe.end()
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        allowed = (
            torch.cuda.memory_reserved() + 2 * needed.base + 5 * needed.activations + 256 * MIB
        )
        torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / total))
        exp = Experiment("out-of-memory", root=checks.folder)
        try:
            exp.run_fit(
                [large, little], tiny.create_model, rows, num_chunks=2, block=True, panel=False
            )
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
    adjusted = [e for e in exp.events if e.kind == "run_adjusted"]
    good = {run.status for run in exp.runs} == {"completed"} and bool(adjusted)
    sizes = [e.data["changes"]["training_args.per_device_train_batch_size"] for e in adjusted]
    others = {e.run for e in adjusted} == {1} and exp.run(2).exact
    checks.line(
        good and bool(others), "a batch too large becomes smaller", f"micro-batches {sizes}"
    )
    exp.end()


class Squeeze(TrainerCallback):
    """Leaves no memory for the fifth step, once."""

    squeezed = 0

    def on_train_begin(self, args, state, control, **kwargs):
        if torch.cuda.is_available():
            torch.cuda.set_per_process_memory_fraction(1.0)

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step != 4 or Squeeze.squeezed:
            return
        Squeeze.squeezed = 1
        if not torch.cuda.is_available():
            raise torch.OutOfMemoryError("as on a GPU")
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + MIB) / total)


def a_step_that_runs_out_is_taken_again(checks):
    """From where the weights are, and from a checkpoint that was saved at each step: the same."""
    ended, steps = [], []
    for callbacks, seconds in (([Squeeze], 300), ([Squeeze, scarce.CountSteps], 1e-6)):
        Squeeze.squeezed = 0
        run = checks.config(5).copy(callbacks=callbacks)
        exp = checks.fit(run, chunks=1, slice_steps=1, checkpoint_seconds=seconds)
        exp.wait()
        completed(exp)
        kinds = [e.kind for e in exp.events]
        after = kinds.index("run_adjusted")
        prepared = next(e for e in list(exp.events)[after:] if e.kind == "run_prepared")
        steps.append(prepared.data["step"])
        ended.append(oracle.sliced(exp.run(1)))
        exp.end()
    checks.line(steps == [4, 4], "a step without memory is taken again", f"from steps {steps}")
    figures = f"largest difference {difference(*ended):.1e}"
    checks.line(same(*ended), "from weights as from a checkpoint", figures)


def parts_by_tokens_are_the_same_steps(checks):
    here = checks.here
    rows = [
        {"text": " ".join([tiny.sentence(n, 12)] * (16 if n % 8 == 0 else 1))} for n in range(64)
    ]
    told = {}
    for name, given in (
        ("fixed", {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}),
        ("parts", {"per_device_train_batch_size": 16, "max_tokens_per_batch": 4 * 320}),
    ):
        checks.made += 1
        exp = Experiment(f"check-{checks.made}", root=checks.folder)
        one = checks.config(6, lora={"lora_dropout": 0.0}, bf16=False, **given)
        exp.run_fit(one, tiny.create_model, rows, num_chunks=1, block=True, panel=False)
        completed(exp)
        losses = [row["loss"] for row in exp.run(1).rows if "loss" in row]
        told[name] = losses, _trained(exp.events), exp.run(1).memory.peak
        exp.end()
    (fixed, slow, _), (parts, quick, peak) = told["fixed"], told["parts"]
    apart = max(abs(a - b) for a, b in zip(fixed, parts, strict=True))
    checks.line(apart < 1e-3, "losses in parts by tokens", f"differ by {apart:.1e}")
    figures = f"{quick / slow:.2f} x the time of micro-batches of 4 rows"
    if here.cuda:
        figures += f", peaks {told['fixed'][2] / MIB:.0f} and {peak / MIB:.0f} MiB"
    checks.line(None, "parts by tokens", figures)


def precisions_train_beside_each_other(checks):
    kinds = [{"bf16": True}, {"bf16": False, "fp16": True} if checks.here.cuda else {"bf16": False}]
    runs = [checks.config(4, **kind) for kind in kinds]
    both = checks.fit(runs, slice_steps=1)
    both.wait()
    completed(both)
    for number, run in enumerate(runs, start=1):
        alone = checks.fit(run)
        alone.wait()
        equal = same(oracle.sliced(both.run(number)), oracle.sliced(alone.run(1)))
        name = " ".join(key for key, on in kinds[number - 1].items() if on) or "float32"
        checks.line(equal, f"{name} beside the other equals {name} alone")
        alone.end()
    both.end()


def an_added_run_costs_its_adapter(checks):
    if not checks.here.cuda:
        return checks.line(
            None, "memory of an added run", "no device tells it; see bench_memory.py"
        )
    used = []
    for count in (1, 5):
        exp = checks.fit(
            [checks.config(n, num_train_epochs=50) for n in range(count)], chunks=1, slice_steps=1
        )
        until(exp, lambda exp=exp: all(run.facts.step > 1 for run in exp.runs), 120)
        exp.pause_all().wait(60)
        torch.cuda.synchronize()
        used.append(torch.cuda.memory_allocated())
        needed = exp.run(1).memory
        exp.end()
    each, allowed = (used[1] - used[0]) / 4, needed.weights + needed.optimizer
    figures = f"{each / MIB:.1f} MiB, adapter and moments {allowed / MIB:.1f} MiB"
    return checks.line(each <= 1.2 * allowed + MIB, "memory of an added run", figures)


def _wait(here):
    if here.cuda:
        torch.cuda.synchronize()


def _trained(events):
    first = next(e.time for e in events if e.kind == "slice_started")
    return max(e.time for e in events if e.kind == "run_completed") - first


def slices_tell_what_the_device_did(checks):
    """Tokens and waiting on any device, its use where the driver tells it."""
    exp = checks.fit([checks.config(seed) for seed in (1, 2)])
    exp.wait()
    completed(exp)
    slices = [e.data for e in exp.events if e.kind == "slice_ended" and e.data["steps"]]
    tokens = sum(one.get("tokens", 0) for one in slices)
    waited = sum(one["fetch_seconds"] for one in slices) / sum(one["seconds"] for one in slices)
    used = [one["utilisation"] for one in slices if "utilisation" in one]
    told = f"{100 * sum(used) / len(used):.0f} %" if used else "not told (nvidia-ml-py, MIG)"
    good = tokens > 0 and 0 <= waited < 1 and all(0 <= one <= 1 for one in used)
    figures = f"{tokens} tokens, {100 * waited:.1f} % waiting, device use {told}"
    checks.line(good, "slices tell what the device did", figures)
    exp.end()


CHECKS = [
    slicing_is_exact,
    hand_overs_are_quick,
    moving_is_exact_and_quick,
    a_small_budget_changes_no_number,
    running_out_of_memory_costs_one_run_its_batch,
    a_step_that_runs_out_is_taken_again,
    parts_by_tokens_are_the_same_steps,
    precisions_train_beside_each_other,
    an_added_run_costs_its_adapter,
    slices_tell_what_the_device_did,
    *packages.CHECKS,
]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="on the CPU, as far as it can")
    parser.add_argument("--only", help="checks whose name has this in it")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    started, here = time.monotonic(), machine(options.cpu)
    out = os.fdopen(os.dup(1), "w")
    name = torch.cuda.get_device_name() if here.cuda else "CPU"
    print(name, torch.__version__, file=out)
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        for stream in (1, 2):  # of the trainers, and of processes that the oracle starts
            os.dup2(nowhere.fileno(), stream)
        checks = Checks(here, Path(folder), out)
        for check in CHECKS:
            if options.only is None or options.only in check.__name__:
                checks.run(check)
    verdict = "all passed" if not checks.failed else f"{checks.failed} FAILED"
    print(f"{verdict} in {time.monotonic() - started:.0f} s", file=out, flush=True)
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
