"""A metric of all runs as a plotly figure. The lines come from `series`; here they are drawn."""

from html import escape
from typing import TYPE_CHECKING

from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.ui.colors import GREY, LIGHT, pens
from rapidfire_jupyter.ui.fold import Fold
from rapidfire_jupyter.ui.series import Axis, best_first, series

if TYPE_CHECKING:
    import plotly.graph_objects as go

_TITLES = {"step": "step", "epoch": "epoch", "rows": "rows seen", "time": "seconds"}


def figure(fold: Fold, metric: str, x: Axis = "step") -> "go.Figure":
    """A line for each run; the best eight in colour if there are more.

    Raises:
        OpError: plotly is not installed, or no run has logged the metric.
    """
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise OpError("figures need the package plotly; run `pip install plotly`") from error
    found = series(fold, metric, x)
    ranked = [one.run for one in best_first(found, metric)]
    colored = pens([one.run for one in found], ranked)
    drawn = go.Figure()
    for one in sorted(found, key=lambda s: s.run in colored):
        pen = colored.get(one.run)
        about = f"run {one.run} {one.name}" + (f" ({one.about})" if one.about else "")
        drawn.add_trace(
            go.Scatter(
                x=one.x,
                y=one.y,
                name=escaped(f"{one.run}: {one.name}"),
                mode="lines" if len(one.x) > 1 else "markers",
                line={
                    "color": GREY if pen is None else LIGHT[pen],
                    "width": 1 if pen is None else 2,
                    "dash": "dash" if one.dashed else "solid",
                },
                opacity=0.5 if pen is None else 1.0,
                hovertemplate=escaped(about).replace("%", "&#37;")
                + "<br>%{x:.6g}: %{y:.6g}<extra></extra>",
            )
        )
    drawn.update_layout(
        template="plotly_white",
        xaxis_title=_TITLES[x],
        yaxis_title=escaped(metric),
        margin={"l": 60, "r": 20, "t": 30, "b": 50},
        hovermode="closest",
    )
    return drawn


def escaped(text: str) -> str:
    """A text that plotly shows as it is: it reads some tags, and names in braces after a %."""
    return escape(text, quote=False).replace("%", "&#37;")
