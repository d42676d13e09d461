"""Curves as SVG: what pages show without JavaScript. All text in it is escaped."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rapidfire_jupyter.ui.colors import DARK, GREY, LIGHT

WIDTH, HEIGHT = 640, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 34, 12, 34
_APART = 11  # pixels between two names at the ends of curves
_DARK = "".join(
    f".rf-c .k{i}{{stroke:{color}}}.rf-c .k{i}t{{fill:{color}}}" for i, color in enumerate(DARK)
)
# Colours are attributes, so that a page without its styles has them; these are for dark pages.
STYLE = (
    f"@media(prefers-color-scheme:dark){{body:not([data-jp-theme-light]) {{{_DARK}}}}}"
    f"[data-jp-theme-light=false] {{{_DARK}}}"
)


@dataclass(frozen=True)
class Curve:
    """One line of a chart.

    Attributes:
        points: x and y; values that are not finite are left out.
        pen: Number of its colour; None for grey.
        dashed: Whether it is drawn dashed.
        end: What stands at its end, if it has a colour.
    """

    label: str
    points: Sequence[tuple[float, float]]
    pen: int | None = None
    dashed: bool = False
    end: str = ""


def chart(title: str, curves: Sequence[Curve], x_title: str = "step", most: int = 60) -> str:
    """A chart of curves, those with a colour on top.

    Args:
        title: Said by screen readers, and as the y axis' name.
        curves: Lines to draw.
        x_title: Name of the x axis.
        most: Points drawn of each curve.
    """
    drawn = [(c, _few([p for p in c.points if _finite(p)], most)) for c in curves]
    known = [p for _, points in drawn for p in points]
    if not known:
        return ""
    x_ticks, y_ticks = (ticks([p[axis] for p in known]) for axis in (0, 1))
    x_low, x_high = min(x_ticks[0], *(p[0] for p in known)), max(p[0] for p in known)
    y_low, y_high = y_ticks[0], y_ticks[-1]

    def at(point: tuple[float, float]) -> tuple[float, float]:
        x = (point[0] - x_low) / ((x_high - x_low) or 1.0)
        y = (point[1] - y_low) / ((y_high - y_low) or 1.0)
        across, down = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
        return _LEFT + x * across, HEIGHT - _BOTTOM - y * down

    parts = [
        f'<svg class="rf-c" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" '
        f'style="max-width:100%;height:auto" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title>'
        '<g font-size="11" font-family="system-ui,sans-serif" fill="currentColor">'
    ]
    for tick in y_ticks:
        y = at((x_low, tick))[1]
        parts.append(
            f'<path stroke="currentColor" opacity=".15" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>'
        )
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:.6g}</text>')
    for tick in x_ticks:
        x = at((tick, y_low))[0]
        if x <= WIDTH - _RIGHT + 1:
            parts.append(
                f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 15}" text-anchor="middle">{tick:.6g}'
                "</text>"
            )
    parts.append(f'<text x="{WIDTH // 2}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_title)}')
    parts.append(f'</text></g><g fill="none" stroke-width="1.5" stroke="{GREY}">')
    for curve, points in sorted(drawn, key=lambda d: d[0].pen is not None):
        if points:
            parts.append(_line(curve, [at(point) for point in points]))
    ends = [(curve, at(points[-1])) for curve, points in drawn if points and curve.pen is not None]
    return "".join([*parts, "</g>", *_ends(ends), "</svg>"])


def _ends(ends: Sequence[tuple[Curve, tuple[float, float]]]) -> list[str]:
    """The names of curves where they end, moved apart where they would overlap."""
    placed: list[tuple[Curve, float, float]] = []
    for curve, (x, y) in sorted(ends, key=lambda end: end[1][1]):
        near = [below for _, beside, below in placed if abs(beside - x) < 3 * _APART]
        placed.append((curve, x, max([y, *(below + _APART for below in near)])))
    over = max([0.0, *(y - (HEIGHT - _BOTTOM) for _, _, y in placed)])
    return [
        f'<text class="k{curve.pen}t" x="{x + 4:.1f}" y="{y - over + 4:.1f}" font-size="11" '
        f'font-weight="700" font-family="system-ui,sans-serif" '
        f'fill="{LIGHT[curve.pen or 0]}">{escape(curve.end)}</text>'
        for curve, x, y in placed
        if curve.end
    ]


def _line(curve: Curve, points: Sequence[tuple[float, float]]) -> str:
    pen = "" if curve.pen is None else f' class="k{curve.pen}" stroke="{LIGHT[curve.pen]}"'
    dash = ' stroke-dasharray="5 4"' if curve.dashed else ""
    if len(points) == 1:
        x, y = points[0]
        path = f"M{x:.1f} {y:.1f}h.1"
        dash = ' stroke-width="5" stroke-linecap="round"'
    else:
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path{pen}{dash} d="{path}"><title>{escape(curve.label)}</title></path>'


def ticks(values: Sequence[float], most: int = 6) -> list[float]:
    """Round numbers from below the least value to above the greatest."""
    low, high = min(values), max(values)
    if low == high:
        low, high = (low - 0.5, high + 0.5) if low else (0.0, 1.0)
    rough = (high - low) / most
    size = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    step = next((m * size for m in (1, 2, 2.5, 5, 10) if m * size >= rough), 10 * size)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def _finite(point: tuple[float, float]) -> bool:
    return math.isfinite(point[0]) and math.isfinite(point[1])


def _few(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """The lowest and the highest point of each of even stretches, and the two ends."""
    if len(points) <= most:
        return list(points)
    stretches = max(1, (most - 2) // 2)
    kept = {0, len(points) - 1}
    for k in range(stretches):
        part = range(k * len(points) // stretches, (k + 1) * len(points) // stretches)
        kept.add(min(part, key=lambda i: points[i][1]))
        kept.add(max(part, key=lambda i: points[i][1]))
    return [points[i] for i in sorted(kept)]
