"""Questions of a view and their answers, see `wire.Ask`. Questions are untrusted."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from rapidfire_jupyter import folders, samples
from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.state import Run
from rapidfire_jupyter.ui import exports, form, library, schedule
from rapidfire_jupyter.ui.actions import Actions, Reply
from rapidfire_jupyter.ui.orders import MessageError, flag, named_values
from rapidfire_jupyter.ui.repeats import folded
from rapidfire_jupyter.ui.wire import Sample

MOST_LINES = 2_000
_KINDS = ("base", "weights", "gradients", "optimizer", "activations")  # of a run's memory
TAIL_BYTES = 400_000

Args = Mapping[str, Any]  # Any: what a browser sent


def reply(actions: Actions, what: str, args: Args) -> Reply:
    """Answer a question.

    Raises:
        RapidFireError: It cannot be answered; the text says why.
    """
    if what in actions.more:
        return actions.more[what](args)
    if what not in _ANSWERS:
        raise MessageError(f"a question is one of {', '.join(_ANSWERS)}, got {what!r:.80}")
    return _ANSWERS[what](actions, args)


def _run(actions: Actions, args: Args) -> Run:
    run, runs = args.get("run"), actions.state().runs
    if type(run) is not int or run not in runs:
        raise OpError(f"there is no run {run!r:.40}; runs: {', '.join(map(str, runs)) or 'none'}")
    return runs[run]


def _library(actions: Actions, args: Args) -> Reply:
    name = args.get("name")
    if not isinstance(name, str) or name not in library.LIBRARIES:
        known = ", ".join(library.LIBRARIES)
        raise MessageError(f"a library is one of {known}, got {name!r:.40}")
    return Reply({"name": name}, (library.source(name),))


def _live(actions: Actions, args: Args) -> tuple[Run, RunConfig]:
    run = _run(actions, args)
    config = actions.config(run.id)
    if config is None:
        raise OpError(f"run {run.id} is cloned from its live config; run its run_fit cell first")
    return run, config


def _form(actions: Actions, args: Args) -> Reply:
    run, config = _live(actions, args)
    warm = form.no_warm_start(run) or actions.refusal(run.id, config)
    return Reply({"fields": form.fields(config), "warm": warm})


def _check(actions: Actions, args: Args) -> Reply:
    run, config = _live(actions, args)
    changes, warm = named_values(args, "changes"), flag(args, "warm")
    found = form.check(run, config, changes, actions.refusal)
    name = actions.name if actions.several() else ""
    return Reply({**found, "line": form.line(run.id, changes, warm, name)})


def _schedule(actions: Actions, args: Args) -> Reply:
    run, config = _live(actions, args)
    known = schedule.prepared(actions.state(), actions.log.since(0), run.id)
    return Reply(schedule.preview(config, named_values(args, "changes"), flag(args, "warm"), known))


def _config(actions: Actions, args: Args) -> Reply:
    run = _run(actions, args)
    how = "measured" if run.memory.get("measured") else "estimated"
    memory = {
        f"memory.{kind}": f"{run.memory[kind] / 2**20:,.1f} MiB"
        + (f" ({how})" if kind == "activations" else "")
        for kind in _KINDS
        if kind in run.memory
    }
    if memory:
        whole = sum(run.memory[kind] for kind in _KINDS)
        memory["memory.all"] = f"{whole / 2**20:,.1f} MiB"
    return Reply({"values": {**run.config, **memory, **_seconds(actions, run.id)}})


def _seconds(actions: Actions, run: int) -> dict[str, str]:
    """What a run's slices took so far, and of what; empty before the first one is over."""
    events = actions.log.since(0)
    slices = [e.data for e in events if e.run == run and e.kind == "slice_ended"]
    if not slices:
        return {}
    whole = sum(one["seconds"] for one in slices)
    told = {"seconds.slices": f"{whole:,.1f} s in {len(slices)}"}
    for kind in ("eval", "fetch", "moving"):
        part = sum(one.get(f"{kind}_seconds", 0.0) for one in slices)
        told[f"seconds.{kind}"] = f"{part:,.1f} s ({100 * part / max(whole, 1e-9):.1f} %)"
    return told


def _log(actions: Actions, args: Args) -> Reply:
    run = _run(actions, args)
    lines = args.get("lines", 200)
    if type(lines) is not int or not 0 < lines <= MOST_LINES:
        raise MessageError(f"lines is a number from 1 to {MOST_LINES}, got {lines!r:.40}")
    file = folders.run_dir(actions.folder, run.id) / "train.log"
    text = ""
    if file.exists():
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - TAIL_BYTES))
            text = stream.read().decode("utf-8", "replace")
    shown = "\n".join(folded(text.splitlines())[-lines:])
    failed = [
        e for e in actions.log.since(0) if e.kind == "run_failed" and e.run == run.id and run.error
    ]
    if failed:
        shown = f"{shown}\n\n{failed[-1].data.get('trace', '')}".strip("\n")
    return Reply({"text": shown})


def _peek(actions: Actions, args: Args) -> Reply:
    run = _run(actions, args)
    file = folders.run_dir(actions.folder, run.id) / "peek.json"
    if not file.exists():
        raise OpError(f"run {run.id} was not prepared yet; its first batch is known in a minute")
    rows = json.loads(file.read_text(encoding="utf-8"))
    return Reply(
        {"rows": [[{"text": text, "learned": bool(on)} for text, on in row] for row in rows]}
    )


def _data(actions: Actions, args: Args) -> Reply:
    file = actions.folder / "chunks.json"
    if not file.exists():
        return Reply({"chunks": [], "measured": 0, "rows": 0})
    found = {"unit": "words", **json.loads(file.read_text(encoding="utf-8"))}
    return Reply({key: found[key] for key in ("chunks", "measured", "rows", "unit")})


def _samples(actions: Actions, args: Args) -> Reply:
    chunk = args.get("chunk")
    if chunk is not None and (type(chunk) is not int or chunk < 0):
        raise MessageError(f"a chunk is a whole number, got {chunk!r:.40}")
    known = samples.chunks(actions.log.since(0), actions.state())
    numbers = sorted({number for steps in known.values() for number in steps})
    runs = args.get("runs")
    if runs is not None and not (isinstance(runs, list) and all(type(r) is int for r in runs)):
        raise MessageError(f"runs is a list of numbers, got {runs!r:.40}")
    chunk = samples.shared(known, runs) if chunk is None else chunk
    asked = samples.gather(actions.folder, known, chunk)
    prompts: list[Sample] = [
        {
            "prompt": one.prompt,
            "reference": "\n— or —\n".join(one.references),
            "predictions": {str(run): text for run, text in one.predictions.items()},
            "scores": {str(run): dict(scores) for run, scores in one.scores.items()},
        }
        for one in asked
    ]
    return Reply({"chunks": numbers, "chunk": chunk, "prompts": prompts})


def _export(actions: Actions, args: Args) -> Reply:
    kind = args.get("format")
    if kind == "adapter":
        run = _run(actions, args)
        return Reply({"path": exports.relative(actions.adapter(run.id), run.id)})
    if not isinstance(kind, str) or kind not in exports.MIME:
        known = ", ".join([*exports.MIME, "adapter"])
        raise MessageError(f"an export's format is one of {known}, got {kind!r:.40}")
    standing = actions.standing()
    content = exports.content(kind, actions.name, actions.log.since(0), standing.status)
    name = exports.file_name(actions.name, kind)
    return Reply({"file": name, "mime": exports.MIME[kind]}, (content,))


_ANSWERS: dict[str, Callable[[Actions, Args], Reply]] = {
    "library": _library,
    "form": _form,
    "check": _check,
    "schedule": _schedule,
    "config": _config,
    "log": _log,
    "peek": _peek,
    "data": _data,
    "samples": _samples,
    "export": _export,
}
