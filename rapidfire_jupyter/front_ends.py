"""Lets the labextension of JupyterLab see the experiments of this kernel, wired to `ui.comm`."""

from typing import TYPE_CHECKING

from rapidfire_jupyter import showing
from rapidfire_jupyter.ui import comm

if TYPE_CHECKING:
    from rapidfire_jupyter.experiment import Experiment


def announce() -> None:
    """Let JupyterLab see what there is now and comes later; outside a kernel it does nothing."""
    comm.register(_sources)


def _sources() -> list[comm.Source]:
    from rapidfire_jupyter.experiment import _open

    return [_source(exp) for exp in list(_open.values())]


def _source(exp: "Experiment") -> comm.Source:
    return comm.Source(showing.actions(exp), lambda: str(exp.panel().model_id))
