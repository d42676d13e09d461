"""Effects, importance and rankings, drawn with plotly from plain data."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.ui.figure import escaped, figure
from rapidfire_jupyter.ui.fold import Fold

if TYPE_CHECKING:
    import plotly.graph_objects as go

Data = Mapping[str, Any]  # Any: JSON values, of a pure module's `to_dict`

# By verdict; colours that are told apart without red and green, and a form each.
_MARKS = {
    "better": ("#0072B2", "circle"),
    "worse": ("#D55E00", "diamond"),
    "tie": ("#777777", "square-open"),
    "unclear": ("#AAAAAA", "circle-open"),
}
_ROW_PX = 26


def _plotly() -> Any:  # Any: a module without types
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise OpError("figures need the package plotly; run `pip install plotly`") from error
    return go


def effects(found: Data) -> "go.Figure":
    """A forest plot: one row for each change of a hyperparameter, with its interval.

    Raises:
        OpError: plotly is not installed.
    """
    go = _plotly()
    drawn = go.Figure()
    rows = list(found["effects"])
    labels = [escaped(f"{r['factor']}: {r['before']} → {r['after']}") for r in rows]
    for verdict, (color, symbol) in _MARKS.items():
        own = [(label, r) for label, r in zip(labels, rows, strict=True) if r["verdict"] == verdict]
        if not own:
            continue
        means = [r["difference"]["mean"] for _, r in own]
        highs = [_or(r["difference"]["high"], r["difference"]["mean"]) for _, r in own]
        lows = [_or(r["difference"]["low"], r["difference"]["mean"]) for _, r in own]
        drawn.add_trace(
            go.Scatter(
                x=means,
                y=[label for label, _ in own],
                name=verdict,
                mode="markers",
                marker={"color": color, "symbol": symbol, "size": 10},
                error_x={
                    "type": "data",
                    "symmetric": False,
                    "array": [h - m for h, m in zip(highs, means, strict=True)],
                    "arrayminus": [m - low for low, m in zip(lows, means, strict=True)],
                    "color": color,
                },
                customdata=[len(r["pairs"]) for _, r in own],
                hovertemplate="%{y}<br>%{x:.4g}, %{customdata} pairs<extra></extra>",
            )
        )
    drawn.add_vline(x=0, line={"color": "#999999", "width": 1})
    drawn.update_layout(
        template="plotly_white",
        xaxis_title=escaped(f"change of {found['metric']}"),
        yaxis={"categoryorder": "array", "categoryarray": labels[::-1], "automargin": True},
        height=140 + _ROW_PX * len(rows),
        margin={"l": 60, "r": 20, "t": 30, "b": 50},
    )
    return drawn


def _or(value: float | None, other: float) -> float:
    return other if value is None else value


def importance(found: Data) -> "go.Figure":
    """A bar for each hyperparameter, the most important first.

    Raises:
        OpError: plotly is not installed.
    """
    shares = list(found["shares"])[::-1]
    return _bars([escaped(name) for name, _ in shares], [s for _, s in shares], "importance")


def ranking(found: Data) -> "go.Figure":
    """A bar for each run that has a rank, the first one above.

    Raises:
        OpError: plotly is not installed.
    """
    places = [p for p in found["places"] if p["rank"] is not None][::-1]
    names = [escaped(f"{p['run']}: {p['name']}{' (partial)' * p['partial']}") for p in places]
    return _bars(names, [p["value"] for p in places], escaped(str(found["metric"])))


def _bars(names: Sequence[str], values: Sequence[float], title: str) -> "go.Figure":
    go = _plotly()
    drawn = go.Figure(go.Bar(x=list(values), y=list(names), orientation="h"))
    drawn.update_layout(
        template="plotly_white",
        xaxis_title=title,
        yaxis={"automargin": True},
        height=120 + _ROW_PX * len(names),
        margin={"l": 60, "r": 20, "t": 30, "b": 50},
    )
    return drawn


def curves(fold: Fold, metric: str, runs: Sequence[int]) -> "go.Figure":
    """The curves of some runs; the fold keeps no others.

    Raises:
        OpError: plotly is not installed, or none of them has logged the metric.
    """
    fold.curves = {i: points for i, points in fold.curves.items() if i in runs}
    return figure(fold, metric)
