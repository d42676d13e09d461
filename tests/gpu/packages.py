"""Checks that need a package, or a GPU, that is not always there: skipped then, and said aloud."""

import importlib.util

import oracle
import tiny

from rapidfire_jupyter import Experiment, RFGRPOConfig, RFLoraConfig, RFModelConfig

WIDE = {"hidden": 64, "layers": 2}  # adapters of rank 64 have parameters of 4,096 values then,
RANK = {"r": 64}  # which is the least that bitsandbytes keeps in 8 bit


def skipped(checks, what, *packages, cuda=False):
    """Whether a check cannot be made here; tells why."""
    lost = [name for name in packages if importlib.util.find_spec(name) is None]
    reasons = [f"pip install {' '.join(lost).replace('_', '-')}"] if lost else []
    reasons += ["needs a CUDA GPU"] if cuda and not checks.here.cuda else []
    if reasons:
        checks.line(None, what, f"skipped: {', '.join(reasons)}")
    return bool(reasons)


def as_plain(checks, what, exp):
    """Each run of an ended experiment equals its own plain TRL script."""
    for run in exp.runs:
        if run.status != "completed":
            checks.line(False, what, run.trace or run.status)
            continue
        alone = oracle.plain(run, checks.folder / f"{exp.name}-plain-{run.id}")
        good = bool(run.exact)
        try:
            oracle.assert_same(oracle.sliced(run), alone)
        except AssertionError as error:
            good = False
            checks.line(None, what, str(error)[:200])
        checks.line(good, f"{what}, run {run.id} equals plain TRL")
    exp.end()


def ended(checks, configs, create_model=tiny.create_model, rows=None, stopped=False):
    """Train configs until they end; run 1 is stopped after its first step, and resumed."""
    checks.made += 1
    exp = Experiment(f"packages-{checks.made}", root=checks.folder)
    rows = rows or tiny.sft_rows(16)
    asked = []

    def stop(event):
        if stopped and event.kind == "logged" and event.run == 1 and not asked:
            asked.append(exp.stop(1))

    exp._opened.log.subscribe(stop)
    exp.run_fit(configs, create_model, rows, num_chunks=2, slice_steps=1, block=True, panel=False)
    if asked:
        asked[0].wait(60)
        exp.resume(1).wait(60)
        exp.wait()
    return exp


def optimizers_in_8_bit(checks):
    what = "8-bit optimizers"
    if skipped(checks, what, "bitsandbytes"):
        return
    names = ("adamw_8bit", "lion_8bit", "adamw_torch")
    runs = [checks.config(n, WIDE, RANK, optim=name) for n, name in enumerate(names)]
    as_plain(checks, what, ended(checks, runs, stopped=True))


def base(checks):
    """A folder with a random model, to be loaded by its name."""
    folder = checks.folder / "base"
    if not folder.exists():
        tiny.model(**WIDE).save_pretrained(folder)
        tiny.tokenizer().save_pretrained(folder)
    return str(folder)


def a_base_in_4_bit(checks):
    what = "QLoRA on one 4-bit base"
    if skipped(checks, what, "bitsandbytes"):
        return
    packed = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    kwargs = {"quantization_config": packed}
    runs = [checks.config(n).copy(model_name=base(checks), model_kwargs=kwargs) for n in (1, 2)]
    exp = ended(checks, runs, create_model=None, stopped=True)
    checks.line(exp._fit.executor.facts()["bases"] == 1, what)
    as_plain(checks, what, exp)


def loftq(checks):
    what = "LoftQ beside plain LoRA"
    if skipped(checks, what, "bitsandbytes", "scipy", cuda=True):
        return
    init = {"init_lora_weights": "loftq", "loftq_config": {"loftq_bits": 4, "loftq_iter": 1}}
    as_plain(checks, what, ended(checks, [checks.config(1, lora=init), checks.config(2)]))


def liger(checks):
    what = "Liger"
    if skipped(checks, what, "liger_kernel", cuda=True):
        return
    losses = []
    for on in (True, False):  # one for all runs of a fit
        runs = [checks.config(n, use_liger_kernel=on, full_determinism=False) for n in (1, 2)]
        exp = ended(checks, runs)
        losses.append([row["loss"] for row in exp.run(1).rows if "loss" in row])
        told = [run.trace or run.status for run in exp.runs if run.status != "completed"]
        checks.line(not told, f"{what} {'on' if on else 'off'}", "".join(told[:1]))
        exp.end()
    apart = max(abs(a - b) for a, b in zip(*losses, strict=True))
    checks.line(apart < 0.02, "losses with Liger and without", f"differ by {apart:.1e}")


def vllm(checks):
    what = "GRPO with vLLM"
    if skipped(checks, what, "vllm", cuda=True):
        return
    args = RFGRPOConfig(
        use_vllm=True,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.2,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=16,
        logging_steps=1,
        max_steps=4,
    )
    run = RFModelConfig(
        base(checks),
        peft_config=RFLoraConfig(target_modules="all-linear"),
        training_args=args,
        reward_funcs=[tiny.reward_length],
    )
    exp = ended(checks, run, create_model=None, rows=tiny.grpo_rows(16))
    run = exp.run(1)
    good = run.status == "completed" and not run.exact
    checks.line(good, what, run.trace or str(run.exact))
    exp.end()


CHECKS = [optimizers_in_8_bit, a_base_in_4_bit, loftq, liger, vllm]
