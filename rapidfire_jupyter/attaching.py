"""What an experiment was made with, whether a request is the same, and how it is gone on with.

Any: JSON values, data sets as `run_fit` takes them.
"""

import json
import platform
from collections.abc import Mapping
from typing import Any

import torch

from rapidfire_jupyter import folders
from rapidfire_jupyter.changes import modify
from rapidfire_jupyter.config import RunConfig, differences, flatten
from rapidfire_jupyter.data import tasks
from rapidfire_jupyter.data.sets import fingerprint
from rapidfire_jupyter.encoding import decode, encode, name_of
from rapidfire_jupyter.errors import ConfigError, ExperimentError
from rapidfire_jupyter.events import EventLog
from rapidfire_jupyter.fit import Fit
from rapidfire_jupyter.mixture import WEIGHTS, at_start
from rapidfire_jupyter.operations import with_weights
from rapidfire_jupyter.request import Request
from rapidfire_jupyter.state import State
from rapidfire_jupyter.training import models

_VERSIONED = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")


def facts(request: Request, train: Any, evaluation: Any, create_model: Any) -> dict[str, Any]:
    """What must be the same for an experiment to go on."""
    mixture = request.train if isinstance(request.train, tasks.Mixture) else None
    sizes = {} if mixture is None else {name: len(one) for name, one in mixture.tasks.items()}
    return {
        **({"tasks": sizes} if sizes else {}),
        "seed": request.seed,
        "num_chunks": request.num_chunks,
        "chunk_size": request.chunk_size,
        "eval_rows": request.eval_rows,
        **_order_facts(request),
        "generate_rows": request.generate_rows,
        "max_new_tokens": request.max_new_tokens,
        "train_rows": len(train) if hasattr(train, "__len__") else None,
        "train_fingerprint": fingerprint(train),
        "eval_fingerprint": tasks.fingerprints(evaluation),
        "create_model": models.source_of(create_model),
    }


def _order_facts(request: Request) -> dict[str, Any]:
    """The order of rows, where it is not plain TRL's."""
    if request.strategy == "shuffle":
        return {}
    return {"strategy": request.strategy, "stratify": request.stratify}


def specs(configs: list[RunConfig]) -> list[dict[str, Any]]:
    """The runs of a new experiment as its log has them."""
    flat = [encode(flatten(config)) for config in configs]
    varying = [
        k for k in sorted({k for f in flat for k in f}) if len({repr(f.get(k)) for f in flat}) > 1
    ]
    return [
        {
            "id": number,
            "name": config.model.name or _label(flat[number - 1], varying) or f"run {number}",
            "trainer_type": config.trainer.name,
            "config": flat[number - 1],
        }
        for number, config in enumerate(configs, start=1)
    ]


def _label(config: Mapping[str, Any], varying: list[str]) -> str:
    parts = []
    for key in varying:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, dict):
            value = name_of(value).rpartition(".")[2] or "..."
        if isinstance(value, float):
            value = f"{value:.4g}"
        text = "+".join(map(str, value)) if isinstance(value, list) else str(value)
        parts.append(f"{key.rpartition('.')[2]}={text}")
    return " ".join(parts)[:120]


def check_same(name: str, state: State, facts: Mapping[str, Any], configs: list[RunConfig]) -> None:
    """Refuse other configurations or data under the same name; warn of functions that changed."""
    assert state.fit is not None
    changed = {k: v for k, v in differences(state.fit, facts).items() if k != "create_model"}
    ways = f"give the first ones again, use another name than {name!r}, or delete its folder"
    if changed:
        key, (old, new) = next(iter(changed.items()))
        raise ExperimentError(
            f"experiment {name!r} was made with {key}={old!r}, not {new!r}; {ways}"
        )
    grid = [run for run in state.runs.values() if run.parent is None]
    if len(grid) != len(configs):
        raise ExperimentError(
            f"experiment {name!r} has {len(grid)} configurations, not {len(configs)}; {ways}"
        )
    redefined = {"create_model_fn"} if state.fit["create_model"] != facts["create_model"] else set()
    for run, config in zip(grid, configs, strict=True):
        for key, (old, new) in differences(_as_begun(run.config), encode(flatten(config))).items():
            if _is_code(old) and _is_code(new):
                redefined.add(key)
            elif not _was_extended(key) and key not in run.adjusted:
                raise ExperimentError(
                    f"run {run.id} of experiment {name!r} has {key}={old!r}, not {new!r}; {ways}"
                )
    for key in sorted(redefined):
        print(f"note: {key} has changed since {name!r} began; its runs go on with the new one")


def _as_begun(config: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded config with the weights of its mixture before any op changed them."""
    weights = config.get(WEIGHTS)
    return {**config, WEIGHTS: at_start(weights)} if weights else dict(config)


def _was_extended(key: str) -> bool:
    return key in ("training_args.num_train_epochs", "training_args.max_steps")


def _is_code(value: object) -> bool:
    return isinstance(value, dict) and ("callable" in value or "object" in value)


def attach(fit: Fit, log: EventLog) -> None:
    """Go on with a recorded experiment in this kernel: configs of clones again, status of runs."""
    stored = json.loads((fit.folder / "experiment.json").read_text(encoding="utf-8"))
    for event in list(log.events):
        data = event.data
        if event.kind == "run_adjusted" and event.run in fit.configs:
            changes = {k: decode(v, k) for k, v in data["changes"].items()}
            fit.configs[event.run] = modify(fit.configs[event.run], changes)
        if event.kind != "op" or data["outcome"] != "applied":
            continue
        try:
            if data["kind"] == "clone" and event.run in fit.configs:
                changes = {k: decode(v, k) for k, v in data["args"]["changes"].items()}
                made, clone = data["created"], modify(fit.configs[event.run], changes)
                fit.configs[made["id"]] = with_weights(clone, made["config"])
            elif data["kind"] == "mix" and event.run in fit.configs:
                weights = {WEIGHTS: data["weights"]}
                fit.configs[event.run] = with_weights(fit.configs[event.run], weights)
            elif data["kind"] == "resume" and data["args"] and event.run in fit.configs:
                changes = {k: decode(v, k) for k, v in data["args"].items()}
                fit.configs[event.run] = modify(fit.configs[event.run], changes)
        except ConfigError:
            number = data["created"]["id"] if "created" in data else event.run
            print(
                f"run {number} was cloned with a function: run its clone cell again to let it go on"
            )
    folders.settle_trash(fit.folder, fit.state)
    log.append("attached", sync=True)
    now = versions()
    moved = {k: v for k, v in differences(stored["versions"], now).items()}
    if moved:
        text = ", ".join(f"{k} {old} -> {new}" for k, (old, new) in moved.items())
        for run in fit.state.runs.values():
            if run.step > 0 and run.status not in ("completed", "deleted"):
                log.append("run_inexact", run.id, reason=f"went on in another environment: {text}")


def versions() -> dict[str, Any]:
    """What numbers depend on besides configs and data."""
    from importlib.metadata import version

    device = torch.accelerator.current_accelerator()
    return {
        **{name: version(name) for name in _VERSIONED},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": str(device or "cpu"),
        "threads": torch.get_num_threads(),
    }
