"""What each op does: judged, then done to the executor and the disk. Its event does the rest."""

import time
from collections.abc import Mapping
from typing import Any

from rapidfire_jupyter import folders, mixture
from rapidfire_jupyter.changes import modify, trains_longer
from rapidfire_jupyter.config import RunConfig, flatten
from rapidfire_jupyter.encoding import encode
from rapidfire_jupyter.errors import OpError, RapidFireError
from rapidfire_jupyter.fit import Fit
from rapidfire_jupyter.ops import Op, OpHandle, Verdict, verdict
from rapidfire_jupyter.state import Run
from rapidfire_jupyter.training import checkpoints, messages, trainers, warm


def perform(fit: Fit, op: Op, handle: OpHandle, why: str = "") -> None:
    """Do an op if it may act now, record what came of it, and tell who asked.

    Args:
        fit: The experiment.
        op: What is asked, with the run it is about.
        handle: The asker's end.
        why: What the op was asked for; recorded if it acts.

    Raises:
        OSError: The disk failed.
    """
    judged = verdict(fit.state, op, time.time())
    if (
        op.kind in ("clone", "resume", "mix")
        and op.run in fit.state.runs
        and op.run not in fit.configs
    ):
        reason = f"run {op.run} was cloned with a function; run its clone cell again first"
        judged = Verdict("refused", reason)
    data: dict[str, Any] = {}
    if judged.outcome == "applied":
        try:
            judged, data = act(fit, op)
        except RapidFireError as error:
            judged = Verdict("refused", str(error))
    if judged.outcome == "applied" and why:
        judged = Verdict("applied", why)
    run = fit.state.runs.get(op.run) if op.run is not None else None
    step = data.pop("step", run.step if run else None)
    fit.undecided = True
    fit.record(op, judged, step, **data)
    created = data.get("created") or data.get("existing")
    handle.settle(judged.outcome, judged.reason, step, created["id"] if created else op.run)


def act(fit: Fit, op: Op) -> tuple[Verdict, dict[str, Any]]:
    """Do what an allowed op asks of the executor and the disk; its event does the rest."""
    done = Verdict("applied")
    if op.kind == "clone":
        return _clone(fit, op)
    if op.kind == "stop":
        assert op.run is not None
        step = fit.checkpoint_and_close(op.run)
        _check_saved(fit, op.run)
        return done, {"step": step}
    if op.kind == "resume":
        return _resume(fit, op)
    if op.kind == "boost":
        return done, {"weight": float(op.args["weight"])}
    if op.kind == "mix":
        return done, _mix(fit, op)
    if op.kind == "delete":
        assert op.run is not None
        return done, {"step": _delete(fit, op.run)}
    if op.kind == "undelete":
        assert op.run is not None
        folders.from_trash(fit.folder, op.run)
        fit.prepared.discard(op.run)
    elif op.kind == "policy":
        fit.at_fault = False  # whoever switched off what failed lets the others go on
    return done, {}


def _delete(fit: Fit, run: int) -> int:
    """Put a run's folder into the trash; where the disk is full it goes at once, to free space."""
    full = bool(fit.halted)
    try:
        step = fit.checkpoint_and_close(run)
    except OSError:
        full, step = True, fit.state.runs[run].step
        fit.executor.close(run)
    folders.to_trash(fit.folder, run)
    if full:
        folders.remove_from_trash(fit.folder, run)
    return step


def _resume(fit: Fit, op: Op) -> tuple[Verdict, dict[str, Any]]:
    assert op.run is not None
    fit.prepared.discard(op.run)
    if not op.args:
        return Verdict("applied"), {}
    run, config = fit.state.runs[op.run], modify(fit.configs[op.run], op.args)
    longer = config.model.training_args
    before = fit.configs[op.run].model.training_args
    if all(getattr(longer, name) == getattr(before, name) for name in op.args):
        return Verdict("applied"), {}  # a stopped run that trains that long already goes on
    fit.check_length(config)
    if "max_steps" in op.args and not longer.max_steps > run.step:
        raise OpError(f"max_steps must be over the {run.step} steps done, got {longer.max_steps}")
    if "num_train_epochs" in op.args and not longer.num_train_epochs > before.num_train_epochs:
        raise OpError(
            f"num_train_epochs must be over the run's {before.num_train_epochs}, got "
            f"{longer.num_train_epochs}"
        )
    fit.configs[op.run] = config
    return Verdict("applied"), {"config": encode(flatten(config))}


def _mix(fit: Fit, op: Op) -> dict[str, Any]:
    """Weigh a run's tasks anew from its next step on; it goes on from its checkpoint there."""
    assert op.run is not None
    step = fit.checkpoint_and_close(op.run)
    _check_saved(fit, op.run)
    weights = mixture.from_row(
        fit.configs[op.run].model.mixture["weights"], _rows_met(fit, op.run), op.args["weights"]
    )
    fit.configs[op.run] = modify(fit.configs[op.run], {mixture.WEIGHTS: weights})
    return {"step": step, "weights": weights}


def _rows_met(fit: Fit, run: int) -> int:
    """Rows that a closed run has been trained on where it will go on, over all epochs."""
    newest, _ = checkpoints.newest_good(fit.executor.run_dir(run))
    source = newest.path if newest else fit.source(run)
    return 0 if source is None else warm.rows_met(source, fit.executor.data.plan.rows)


def _clone(fit: Fit, op: Op) -> tuple[Verdict, dict[str, Any]]:
    assert op.run is not None
    parent, config = fit.state.runs[op.run], fit.configs[op.run]
    changed = modify(config, op.args["changes"])
    encoded = encode(flatten(changed))
    fit.check_length(changed)
    fit.executor.check_adapter(changed)
    if not op.args.get("again"):
        for run in fit.state.runs.values():
            same = (run.parent, run.warm) == (op.run, op.args["warm"]) and (
                run.config == encoded or _but_for_weights(run, encoded, op.args["changes"])
            )
            if same and run.status != "deleted":
                fit.configs.setdefault(run.id, with_weights(changed, run.config))
                reason = f"run {run.id} is that clone; again=True makes another"
                return Verdict("already", reason), {"existing": {"id": run.id}}
    deleted = {run.id for run in fit.state.runs.values() if run.status == "deleted"}
    trainers.check_vllm((*(c for i, c in fit.configs.items() if i not in deleted), changed))
    number = max(fit.state.runs) + 1
    step = None
    if op.args["warm"]:
        reason = warm.refusal(config, changed)
        if reason:
            raise OpError(f"{reason}; use warm=False")
        if parent.status == "completed" and not trains_longer(config, changed, parent.step):
            raise OpError(
                f"nothing is left to train: run {parent.id} has finished its schedule; raise "
                "num_train_epochs or max_steps, or use warm=False"
            )
        step = _warm_source(fit, parent, number)
        changed = _weighed_from_here(fit, number, config, changed)
        encoded = encode(flatten(changed))
    spec = {
        "id": number,
        "name": op.args.get("name") or f"clone of {parent.id}",
        "trainer_type": config.trainer.name,
        "config": encoded,
        "parent": parent.id,
        "warm": op.args["warm"],
        "changes": encode(dict(op.args["changes"])),
        "clone_step": step,
    }
    fit.configs[number] = changed
    return Verdict("applied"), {
        "created": spec,
        "step": step if step is not None else parent.step,
    }


def _but_for_weights(run: Run, config: Mapping[str, Any], changes: Mapping[str, Any]) -> bool:
    """Whether a clone was made by these changes, and only weights were changed since, by mix.

    Any: JSON values, hyperparameter values.
    """
    rest = [{k: v for k, v in one.items() if k != mixture.WEIGHTS} for one in (run.config, config)]
    mixed = mixture.WEIGHTS in config
    return mixed and rest[0] == rest[1] and run.changes == encode(dict(changes))


def _weighed_from_here(fit: Fit, clone: int, parent: RunConfig, changed: RunConfig) -> RunConfig:
    """A warm clone's config: new weights hold from where it starts, the parent's before."""
    before, after = parent.model.mixture, changed.model.mixture
    if before == after:
        return changed
    row = warm.rows_met(fit.executor.run_dir(clone) / "source", fit.executor.data.plan.rows)
    weights = mixture.from_row(before["weights"], row, mixture.now(after["weights"]))
    return modify(changed, {mixture.WEIGHTS: weights})


def with_weights(config: RunConfig, known: Mapping[str, Any]) -> RunConfig:
    """A config with the weights that its run has by the log. Any: JSON values."""
    if mixture.WEIGHTS not in known:
        return config
    return modify(config, {mixture.WEIGHTS: known[mixture.WEIGHTS]})


def _warm_source(fit: Fit, parent: Run, clone: int) -> int:
    """Copy the parent's state at its boundary into the clone's own folder."""
    if fit.executor.is_open(parent.id):
        report = fit.executor.command(parent.id, messages.AbortEvaluation())
        assert isinstance(report, messages.Parked | messages.LEFT)
        if not isinstance(report, messages.Parked) or report.begun:
            fit.save(parent.id)
            fit.executor.flush()
            _check_saved(fit, parent.id)
        fit.moved(parent.id, report.step)
    newest, _ = checkpoints.newest_good(fit.executor.run_dir(parent.id))
    if newest is None:
        raise OpError(f"run {parent.id} has no good checkpoint to start warm from; use warm=False")
    folders.copy_source(newest.path, fit.executor.run_dir(clone) / "source")
    return newest.step


def _check_saved(fit: Fit, run: int) -> None:
    known = fit.state.runs[run]
    if known.status == "failed":
        raise OpError(f"run {run} failed as it was saved: {known.error}; see its trace")
