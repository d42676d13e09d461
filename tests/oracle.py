"""The oracle: a run's own plain TRL script, executed in a fresh process, and what it ends with."""

import json
import multiprocessing
import os
import sys
import traceback
from pathlib import Path

# Wall-clock values; everything else that is logged must be equal.
TIMING = ("runtime", "per_second", "step_time")
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "transformers", "trl", "peft", "datasets", "tiny"])


def plain(run, folder: Path, stream: str = ""):
    """Run a run's script on its own; returns its weights, optimizer state and log.

    `stream` is the source of the stream that it trains on, which no script has.
    """
    folder.mkdir(parents=True)
    script = run.script()
    if stream:
        line = next(line for line in script.splitlines() if line.startswith("train_dataset = ..."))
        script = script.replace(line, stream)
    (folder / "script.py").write_text(script)
    process = _context.Process(target=_execute, args=(str(folder), sys.path))
    process.start()
    process.join()
    assert process.exitcode == 0, (folder / "error.txt").read_text()
    return load(
        folder / "plain_trl" / "final",
        folder / "optimizer.pt",
        folder / "plain_trl" / "trainer_state.json",
    )


def sliced(run):
    """What the engine's run ended with."""
    final = run.folder / "final"
    return load(final, run.checkpoint / "optimizer.pt", final / "trainer_state.json")


def load(weights: Path, optimizer: Path, state: Path):
    """Weights, optimizer state and logged rows from their files."""
    import torch
    from safetensors.torch import load_file

    file = next(
        p
        for p in (weights / "adapter_model.safetensors", weights / "model.safetensors")
        if p.exists()
    )
    rows = json.loads(state.read_text())["log_history"]
    kept = [{k: v for k, v in row.items() if not any(t in k for t in TIMING)} for row in rows]
    return load_file(str(file)), torch.load(optimizer, weights_only=True), kept


def assert_same(mine, theirs, what=""):
    """Bit for bit: weights, optimizer state, and every logged key."""
    import torch

    weights, optimizer, rows = mine
    other_weights, other_optimizer, other_rows = theirs
    assert len(rows) == len(other_rows), f"{what}: {len(rows)} rows, not {len(other_rows)}"
    for row, other in zip(rows, other_rows, strict=True):
        assert repr(row) == repr(other), f"{what}: logged {row}, not {other}"
    assert weights.keys() == other_weights.keys(), what
    for name, value in weights.items():
        assert torch.equal(value, other_weights[name]), f"{what}: {name} differs"
    assert optimizer["param_groups"] == other_optimizer["param_groups"], what
    assert optimizer["state"].keys() == other_optimizer["state"].keys(), what
    for key, state in optimizer["state"].items():
        theirs = _flat(other_optimizer["state"][key])
        for name, value in _flat(state).items():
            same = torch.equal(value, theirs[name]) if torch.is_tensor(value) else None
            assert same is not False, f"{what}: optimizer {key}.{name} differs"


def _flat(state: dict) -> dict:
    """A parameter's optimizer state as plain tensors.

    bitsandbytes puts what is quantised into a dict within it, torchao into tensors of its own kind.
    """
    inner = [value for value in state.values() if isinstance(value, dict)]
    flat = {key: value for part in (state, *inner) for key, value in part.items()}
    return {k: v.dequantize() if hasattr(v, "codes") else v for k, v in flat.items()}


def _execute(folder: str, path: list[str]) -> None:
    sys.path[:] = path
    os.chdir(folder)
    try:
        import torch

        space: dict = {"__name__": "__main__"}
        exec(compile(Path("script.py").read_text(), "script.py", "exec"), space)
        torch.save(space["trainer"].optimizer.state_dict(), "optimizer.pt")
    except BaseException:
        Path("error.txt").write_text(traceback.format_exc())
        os._exit(1)
