"""The colours of runs, the same in curves, table and sidebar; `static/pens.js` has them too.

Eight colours that are told apart with any colour vision and stand 3:1 off white, and eight for dark
backgrounds. Who is in colour is the view's choice; all others are grey.
"""

from collections.abc import Sequence

LIGHT = (
    "#6987F0", "#FF5A00", "#2D001E", "#969678", "#000069", "#780F00", "#8700FF", "#964B87",
)  # fmt: skip
DARK = (
    "#694BFF", "#F00F0F", "#00FFF0", "#D2FFA5", "#B487F0", "#C33C4B", "#FFC300", "#A54B87",
)  # fmt: skip
GREY = "#8A8A8A"


def pens(runs: Sequence[int], best_first: Sequence[int]) -> dict[int, int]:
    """Colour numbers of at most eight runs: of all if they are few, else of the best.

    A run's colour follows from its place among those in colour, in the order of their ids.
    """
    chosen = list(runs) if len(runs) <= len(LIGHT) else list(best_first[: len(LIGHT)])
    return {run: number for number, run in enumerate(sorted(chosen))}
