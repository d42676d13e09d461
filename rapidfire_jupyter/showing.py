"""How an experiment is shown: its panel, figures and files, wired to `ui`.

`ui` knows neither `Experiment` nor the engine; what it may ask is handed to it here. Heavy packages
are imported when something is first shown.
"""

import logging
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from rapidfire_jupyter import notebook
from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.encoding import encode
from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.ops import OpHandle
from rapidfire_jupyter.texts import is_path
from rapidfire_jupyter.ui.actions import Actions, Reply, Standing

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from rapidfire_jupyter.experiment import Experiment
    from rapidfire_jupyter.ui.panel import Panel

logger = logging.getLogger(__name__)
MOST_TOLD = 20  # decisions of a policy, in the panel
FORMATS = {".csv": "csv", ".parquet": "parquet", ".html": "html", ".htm": "html"}


def make_panel(exp: "Experiment") -> "Panel":
    """A panel of an experiment."""
    from rapidfire_jupyter.ui.panel import Panel

    return Panel(actions(exp))


def show_in_notebook(exp: "Experiment") -> None:
    """Show the panel under the cell that runs, if this is a notebook."""
    shell = notebook.shell()
    if getattr(shell, "kernel", None) is not None:
        from IPython.display import display

        try:
            display(exp.panel())  # type: ignore[no-untyped-call]
            exp._shown_in = shell.execution_count
        except Exception as error:  # it trains already: that a view is missing must not stop it
            warnings.warn(
                f"the panel cannot be shown ({error!r}); training goes on, see exp.runs",
                stacklevel=3,
            )


def is_shown_in_this_cell(exp: "Experiment") -> bool:
    """Whether the cell that runs shows the panel already."""
    shell = notebook.shell()
    return shell is not None and exp._shown_in == shell.execution_count


def bring_up_to_date(exp: "Experiment") -> None:
    """Let a saved notebook hold what is known now."""
    if exp._panel is not None:
        try:
            exp._panel.flush()
        except Exception:  # the picture must not cost the user what the cell was for
            logger.exception("the panel's picture cannot be brought up to date")


def actions(exp: "Experiment") -> Actions:
    """What the panel of an experiment may see and ask."""
    return Actions(
        name=exp.name,
        folder=exp.folder,
        log=exp._opened.log,
        state=lambda: exp.state,
        standing=lambda: _standing(exp),
        order=lambda kind, run, args: _order(exp, kind, run, args),
        config=lambda run: _config(exp, run),
        refusal=lambda run, config: _refusal(exp, run, config),
        adapter=lambda run: _adapter(exp, run),
        several=lambda: _several(),
        answered=lambda: _answered(exp),
        more={
            "analysis": lambda args: _analysis(exp, args),
            "sample": lambda args: _sample(exp, args),
            "policies": lambda args: _policies(exp, args),
        },
    )


def _analysis(exp: "Experiment", args: Mapping[str, Any]) -> Reply:
    """What each hyperparameter did to a metric. Any: what a browser sent."""
    from rapidfire_jupyter import analyses

    metric = args.get("metric")
    found = analyses.effects(exp, metric if isinstance(metric, str) and metric else None)
    rows = [
        {
            "factor": one.factor,
            "before": one.before,
            "after": one.after,
            "mean": one.difference.mean,
            "low": one.difference.low,
            "high": one.difference.high,
            "verdict": one.verdict,
            "pairs": one.difference.count,
        }
        for one in found.result.effects
    ]
    known = found.result
    top = {"metric": known.metric, "mode": known.mode, "at": known.at, "used": list(known.used)}
    return Reply({**top, "effects": rows, "notes": found.notes})


def _policies(exp: "Experiment", args: Mapping[str, Any]) -> Reply:
    """All policies as the panel shows them, or what one would do now. Any: what a browser sent."""
    from rapidfire_jupyter import findings, switches
    from rapidfire_jupyter.oversight import POLICIES

    known = {one.key: one for one in findings.switched(exp)}
    if args:
        if args.get("would") not in known:
            raise OpError(f"would is one of {', '.join(known)}, got {args.get('would')!r:.40}")
        one = known[args["would"]]
        return Reply({"would": findings.would(exp, one), "missing": one.missing})
    first = exp.events[0].time if exp.events else 0.0
    shown = []
    for key, one in known.items():
        cls = type(one.policy) if one.policy is not None else POLICIES[key]
        counted, told = findings.done(exp, one)
        entry = {
            "key": key,
            "mode": one.mode,
            "given": one.given,
            "about": switches.about(cls),
            "settings": [asdict(part) for part in switches.settings_of(cls, one.policy)],
            "done": counted,
            "told": [[round(time - first, 3), text] for time, text in told[-MOST_TOLD:]],
        }
        shown.append({**entry, "settings": encode(entry["settings"])})
    return Reply({"policies": shown})


def _standing(exp: "Experiment") -> Standing:
    status = exp.status
    if status == "halted" and exp._fit is not None:
        return Standing(status, False, exp._fit.halted)
    if exp.read_only:
        return Standing(status, True, f"another kernel (process {exp._opened.owner()}) trains it")
    if exp._fit is None and exp.state.runs:
        reason = "it has ended; run its run_fit cell to go on"
        return Standing("ended", True, reason)
    return Standing(status, False, "")


def _order(exp: "Experiment", kind: str, run: int | None, args: Mapping[str, Any]) -> OpHandle:
    """Submit an op as the panel's. Any: hyperparameter values."""
    if kind == "policy":
        return exp.policy(args["name"], args["mode"], by="panel", **args["settings"])
    if kind in ("pause_all", "resume_all"):
        return cast(OpHandle, getattr(exp, kind)(by="panel"))
    return cast(OpHandle, getattr(exp, kind)(run, **args, by="panel"))


def _config(exp: "Experiment", run: int) -> RunConfig | None:
    return exp._fit.configs.get(run) if exp._fit is not None else None


def _refusal(exp: "Experiment", run: int, config: RunConfig) -> str:
    from rapidfire_jupyter.training import warm

    parent = _config(exp, run)
    return warm.refusal(parent, config) if parent is not None else "it is not training here"


def _adapter(exp: "Experiment", run: int) -> Path | None:
    from rapidfire_jupyter.training import checkpoints

    view = exp.run(run)
    finished = view.folder / checkpoints.FINAL
    return finished if not checkpoints.fault(finished) else view.checkpoint


def _sample(exp: "Experiment", args: Mapping[str, Any]) -> Reply:
    """Let runs answer what was typed in a view. Any: untrusted."""
    from rapidfire_jupyter.prompts import ask

    runs, prompts = args.get("runs"), args.get("prompts")
    if not isinstance(runs, list) or not isinstance(prompts, list):
        raise OpError("runs and prompts are lists")
    told = ask(exp, runs, prompts, 128).result()
    return Reply({"predictions": {str(run): list(texts) for run, texts in told.items()}})


def _answered(exp: "Experiment") -> bool:
    fit = exp.state.fit or {}
    return bool(fit.get("eval_fingerprint") and fit.get("generate_rows"))


def _several() -> bool:
    from rapidfire_jupyter.experiment import _open

    return sum(e.status not in ("empty", "ended") for e in list(_open.values())) > 1


def figure(
    exp: "Experiment", metric: str, x: Literal["step", "epoch", "rows", "time"]
) -> "go.Figure":
    """See `Experiment.figure`."""
    from rapidfire_jupyter.ui import figure as figures
    from rapidfire_jupyter.ui.fold import Fold

    return figures.figure(Fold().read(exp.events), metric, x)


def export(exp: "Experiment", path: str | Path, kind: str | None = None) -> Path:
    """Write the log as CSV or parquet, or the report as a page; gives the path.

    Args:
        exp: The experiment.
        path: A file; its ending says what is written if `kind` does not.
        kind: "csv", "parquet" or "html".

    Raises:
        OpError: It is no path, the ending is none of these, or the file cannot be written.
    """
    from rapidfire_jupyter.ui import exports

    if not is_path(path):
        raise OpError(f"a path is a text or a Path, got {path!r:.80}; give another")
    file = Path(path)
    fitting = [end for end, one in FORMATS.items() if kind in (None, one)]
    if file.suffix.lower() not in fitting:
        raise OpError(f"a file ends in {', '.join(fitting)}, got {file.name!r}; rename it")
    kind = FORMATS[file.suffix.lower()]
    content = exports.content(kind, exp.name, exp.events, exp.status)
    try:
        file.write_bytes(content)
    except OSError as error:
        raise OpError(f"{file} cannot be written ({error.strerror}); give another path") from error
    return file
