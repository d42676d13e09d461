"""Warm clones: a parent's checkpoint, rewritten for the clone's config.

Plain Hugging Face resume would restore the parent's learning rate, weight decay and logging
intervals, and put a changed batch size on the wrong rows. So the checkpoint itself is rewritten
once, and the clone then resumes from it like any run. With nothing changed it is the parent's, bit
for bit.

Any: values of configs, trainers, and what they wrote into a checkpoint.
"""

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rapidfire_jupyter.arguments import optimizer_name
from rapidfire_jupyter.changes import COLD_ARGUMENTS
from rapidfire_jupyter.config import RunConfig, differences, flatten
from rapidfire_jupyter.encoding import encode
from rapidfire_jupyter.errors import RapidFireError
from rapidfire_jupyter.mixture import WEIGHTS
from rapidfire_jupyter.recorded import Recorded
from rapidfire_jupyter.training import adapters, checkpoints
from rapidfire_jupyter.training.trainers import Schedule

_OWN_START = ("model_name", "model_kwargs", "model_type", "tokenizer", "tokenizer_kwargs", "seed")
_KEPT_PEFT = frozenset({"r", "lora_alpha", "lora_dropout", "target_modules"})
_ADAPTER = "adapter_model.safetensors"

# Optimizers whose moments are tensors of the parameter's shape, which can be padded and scaled.
_PLAIN_MOMENTS = ("adamw_torch", "adamw_torch_fused")


@dataclass(frozen=True)
class Rewritten:
    """A checkpoint that a clone resumes from, its step, and what the user should know."""

    path: Path
    step: int
    notes: tuple[str, ...]


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The encoded values that differ and decide numbers in a checkpoint.

    Code cannot be compared; names decide nothing, and a mixture's weights only the rows to come.
    """
    return {
        key: new
        for key, (old, new) in differences(before, after).items()
        if key not in ("name", WEIGHTS) and '"source"' not in json.dumps([old, new])
    }


def refusal(parent: RunConfig, clone: RunConfig) -> str:
    """Why these changes cannot keep what the parent learned; empty if they can."""
    before, after = encode(flatten(parent)), encode(flatten(clone))
    changed = {k for k in {*before, *after} if before.get(k) != after.get(k)}
    if parent.trainer_type != clone.trainer_type:
        return f"a {parent.trainer.name} run cannot go on warm as {clone.trainer.name}"
    for key in sorted(changed):
        head, _, tail = key.partition(".")
        if head in _OWN_START:
            return f"{key} decides the run's start; a warm clone keeps it"
        if head == "training_args" and tail in COLD_ARGUMENTS:
            return f"{key} cannot change while optimizer state and row order are kept"
        if head == "peft_config" and tail not in _KEPT_PEFT:
            return f"{key} cannot change while the adapter is kept"
    return _peft_refusal(parent, clone) if any(k.startswith("peft_config") for k in changed) else ""


def _peft_refusal(parent: RunConfig, clone: RunConfig) -> str:
    old, new = parent.model.peft_config, clone.model.peft_config
    if old is None or new is None:
        return "an adapter cannot be added to or taken from a run that goes on"
    for one in (old, new):
        name = one.target[1] if isinstance(one, Recorded) else type(one).__name__
        if name != "LoraConfig":
            return f"only a LoRA adapter can change while it is kept, not one of {name}"
    if getattr(old, "rank_pattern", None) or getattr(old, "alpha_pattern", None):
        return "rank_pattern and alpha_pattern keep the adapter's shape; it cannot change warm"
    if new.r < old.r:
        return f"rank r={new.r} is smaller than the parent's {old.r}; what it learned would not fit"
    optim = optimizer_name(parent.model.training_args.optim)
    if (new.r, new.lora_alpha) != (old.r, old.lora_alpha) and optim not in _PLAIN_MOMENTS:
        return f"r and lora_alpha scale what the optimizer keeps, and that of {optim!r} cannot be"
    if adapters.follows_weights(new) and any(
        getattr(old, name) != getattr(new, name) for name in ("r", "lora_alpha", "target_modules")
    ):
        return (
            "this adapter was made from the weights it targets, for its rank, lora_alpha and "
            "target_modules: none of them can change while it is kept"
        )
    was, now = old.target_modules, new.target_modules
    if was != now and now != "all-linear":
        if isinstance(was, str) or isinstance(now, str) or was is None or now is None:
            return "target_modules can only grow: from a list to a longer one, or to 'all-linear'"
        if not set(was) <= set(now):
            lost = ", ".join(sorted(set(was) - set(now)))
            return f"target_modules would lose {lost}, which the parent has trained"
    return ""


def rewrite(
    source: Path,
    target: Path,
    trainer: Any,
    schedule: Schedule,
    changes: Mapping[str, Any],
) -> Rewritten:
    """Rewrite a parent's checkpoint for a clone.

    Args:
        source: The parent's checkpoint.
        target: Folder in which the clone's is made.
        trainer: The clone's trainer, built but not trained.
        changes: What the clone changed, by dotted name.
    """
    shutil.rmtree(target, ignore_errors=True)
    extra = checkpoints.read_extra(source)
    state = json.loads((source / "trainer_state.json").read_text(encoding="utf-8"))
    step, notes = _position(state["global_step"], extra, schedule)
    folder = target / f"checkpoint-{step}"
    shutil.copytree(source, folder)
    (folder / checkpoints.MANIFEST).unlink(missing_ok=True)
    if changes:
        factors = _rewrite_adapter(folder, trainer)
        _rewrite_optimizer(folder, trainer, schedule, step, extra, factors)
    _rewrite_state(folder, state, extra, trainer, schedule, step, changes)
    return Rewritten(folder, step, tuple(notes))


def _position(step: int, extra: Mapping[str, Any], schedule: Schedule) -> tuple[int, list[str]]:
    """The clone's step on the same rows: whole new steps of the same order, rounded down."""
    before, now = extra["steps_per_epoch"], schedule.steps_per_epoch
    if "stream" in extra:  # its steps are counted on through all passes
        before = now = max(step, schedule.total_steps) + 1
    if (before, extra["rows_per_step"]) == (now, schedule.rows_per_step):
        return step, []
    rows = step % before * extra["rows_per_step"]
    within = min(rows // schedule.rows_per_step, now)
    new = step // before * now + within
    new -= new % schedule.multiple
    twice = rows - within * schedule.rows_per_step
    note = (
        f"goes on from step {step} of its parent "
        f"as step {new} of {schedule.rows_per_step} rows each"
    )
    return new, [f"{note}; {twice} rows are met twice" if twice > 0 else note]


def rows_met(folder: Path, rows: int) -> int:
    """Rows that were trained on up to a checkpoint, over all epochs, each of `rows` rows."""
    extra = checkpoints.read_extra(folder)
    state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    epochs, steps = divmod(state["global_step"], extra["steps_per_epoch"])
    return int(epochs * rows + min(steps * extra["rows_per_step"], rows))


def _rewrite_adapter(folder: Path, trainer: Any) -> dict[str, tuple[float, tuple[int, ...]]]:
    """Fit the parent's adapter to the clone's shapes, keeping the function it computes.

    Returns:
        For each tensor of the parent's, by name, the factor it was multiplied with, and its shape.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import load_file, save_file

    path = folder / _ADAPTER
    config = trainer.model.peft_config["default"] if path.exists() else None
    if config is None or config.peft_type != "LORA":
        return {}  # other methods keep their shapes
    old = load_file(str(path))
    new = {k: v.detach().clone() for k, v in get_peft_model_state_dict(trainer.model).items()}
    lost = sorted(set(old) - set(new))
    if lost:
        raise RapidFireError(
            f"a warm clone must keep every adapter weight, but {lost[0]} is gone; use warm=False"
        )
    was = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    factor = _scaling(was["r"], was["lora_alpha"], was.get("use_rslora", False)) / _scaling(
        config.r, config.lora_alpha, config.use_rslora
    )
    factors: dict[str, tuple[float, tuple[int, ...]]] = {}
    for name, value in new.items():
        linear = "lora_B" in name  # of embeddings it is A that begins with zeros
        if name not in old:
            if linear:
                value.zero_()
            continue
        part = old[name].to(value.dtype)
        scaled = factor if linear or "lora_embedding_B" in name else 1.0
        factors[name] = (scaled, tuple(part.shape))
        if linear and value.shape != part.shape:
            value.zero_()
        part = part * scaled if scaled != 1.0 else part
        value[tuple(slice(n) for n in part.shape)] = part
    save_file({k: v.contiguous() for k, v in new.items()}, str(path), metadata={"format": "pt"})
    config.save_pretrained(str(folder))
    return factors


def _scaling(r: int, alpha: float, rslora: bool) -> float:
    return float(alpha / math.sqrt(r)) if rslora else float(alpha / r)


def _rewrite_optimizer(
    folder: Path,
    trainer: Any,
    schedule: Schedule,
    step: int,
    extra: dict[str, Any],
    factors: Mapping[str, tuple[float, tuple[int, ...]]],
) -> None:
    """Join the clone's hyperparameters and schedule with the parent's moments, by parameter name.

    The schedule's rule: at each step the learning rate is what the clone's own schedule, over the
    clone's own total steps, prescribes for that step.
    """
    import torch

    path = folder / "optimizer.pt"
    plateau = _plateau(folder)
    optimizer = trainer.create_optimizer()  # makes its tensors known to torch, too (torchao)
    old = torch.load(path, map_location="cpu", weights_only=True)
    scheduler = trainer.create_scheduler(schedule.total_steps, optimizer)
    if plateau is None:
        for _ in range(step):
            optimizer._opt_called = True  # the schedule alone is wound on; nothing is trained
            scheduler.step()
    names = {id(p): n for n, p in trainer.model.named_parameters()}
    order = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
    parent_order = [n for group in extra["optimizer_names"] for n in group]
    moments = {parent_order[i]: value for i, value in old["state"].items()}
    new = optimizer.state_dict()
    shapes = {n: tuple(p.shape) for n, p in trainer.model.named_parameters()}
    saved = {name: name.replace(".default", "") for name in order}  # as PEFT calls them in files
    new["state"] = {
        i: _moments(moments[name], shapes[name], *factors.get(saved[name], (1.0, shapes[name])))
        for i, name in enumerate(order)
        if name in moments
    }
    _check_shapes(new["state"], [(name, shapes[name]) for name in order])
    torch.save(new, path)
    if plateau is None:
        torch.save(scheduler.state_dict(), folder / "scheduler.pt")
    extra["optimizer_names"] = [[names[id(p)] for p in g["params"]] for g in optimizer.param_groups]
    trainer.optimizer = trainer.lr_scheduler = None


def _plateau(folder: Path) -> Any:
    """State of a scheduler that follows a metric; None for one that follows steps."""
    import torch

    state = torch.load(folder / "scheduler.pt", weights_only=True)
    return state if "num_bad_epochs" in state else None


def _moments(
    state: Mapping[str, Any], shape: tuple[int, ...], factor: float, before: tuple[int, ...]
) -> dict[str, Any]:
    """A parameter's optimizer state in the clone's shape: zero-padded, scaled as its gradient."""
    import torch

    if factor == 1.0 and shape == before:
        return dict(state)
    result: dict[str, Any] = {}
    for key, value in state.items():
        if not torch.is_tensor(value) or value.dim() == 0:
            result[key] = value
            continue
        scaled = value
        if factor != 1.0:
            scaled = value / factor**2 if key.endswith("_sq") else value / factor
        padded = torch.zeros(shape, dtype=value.dtype)
        padded[tuple(slice(n) for n in value.shape)] = scaled
        result[key] = padded
    return result


def _check_shapes(
    states: Mapping[int, Mapping[str, Any]], expected: list[tuple[str, tuple[int, ...]]]
) -> None:
    """Refuse moments of another shape than their parameter's: a fused Adam would crash the kernel.

    Raises:
        RapidFireError: Names the parameter.
    """
    for i, state in states.items():
        name, shape = expected[i]
        for key in ("exp_avg", "exp_avg_sq"):
            there = tuple(getattr(state.get(key), "shape", shape))
            if there != shape:
                raise RapidFireError(
                    f"what the optimizer keeps of {name} is {there} and cannot be made {shape}; "
                    "use warm=False"
                )


def _rewrite_state(
    folder: Path,
    state: dict[str, Any],
    extra: dict[str, Any],
    trainer: Any,
    schedule: Schedule,
    step: int,
    changes: Mapping[str, Any],
) -> None:
    args, moved = trainer.args, step - state["global_step"]
    for kind in ("logging", "eval", "save"):
        every = getattr(args, f"{kind}_steps")
        if every is not None:
            state[f"{kind}_steps"] = (
                every if every >= 1 else math.ceil(schedule.total_steps * every)
            )
    state.update(
        global_step=step,
        max_steps=schedule.total_steps,
        train_batch_size=args.train_batch_size,
        num_train_epochs=math.ceil(args.num_train_epochs),
    )
    if moved:
        state["epoch"] = step / schedule.steps_per_epoch
        state["best_metric"] = state["best_global_step"] = None
    state["best_model_checkpoint"] = None
    if "callbacks" in changes:
        own = {"TrainerControl"}
        state["stateful_callbacks"] = {
            k: v for k, v in state["stateful_callbacks"].items() if k in own
        }
    text = json.dumps(state, indent=2, sort_keys=True)
    (folder / "trainer_state.json").write_text(text + "\n", encoding="utf-8")
    for name in ("_globalstep_last_logged", "_initial_global_step"):
        extra[name] += moved
    (folder / checkpoints.EXTRA).write_text(json.dumps(extra), encoding="utf-8")
