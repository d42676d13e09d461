"""What is seen of a review in a notebook: one row, the buttons, the note, how far one is.

It is handed what to show and what to do, and knows nothing of data. Texts go to the page as texts.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import anywidget
import traitlets
from IPython.display import display

from rapidfire_jupyter.errors import RapidFireError
from rapidfire_jupyter.ui.panel import has_widgets, hear_beside_cells
from rapidfire_jupyter.ui.scripts import script, style
from rapidfire_jupyter.ui.texts import cleaned, in_a_line

__all__ = ["ReviewPanel", "has_widgets"]

MOST = 20_000  # letters of one text that are shown
logger = logging.getLogger(__name__)


class ReviewPanel(anywidget.AnyWidget):
    """The view of a review; every place where it is shown shows the same row.

    Args:
        shown: Gives what to show. Any: JSON values, see `reviewing.Review`.
        do: Called for a click: what, the row's key, the text of the note.
    """

    _esm = traitlets.Unicode(script("dom.js", "theme.js", "review/review.js")).tag(sync=True)
    _css = traitlets.Unicode(style("panel.css", "review/review.css")).tag(sync=True)
    _shown = traitlets.Dict().tag(sync=True)

    def __init__(
        self, shown: Callable[[], Mapping[str, Any]], do: Callable[[str, str, str], None]
    ) -> None:
        self._asked_what, self._asked_to = shown, do
        super().__init__(_anywidget_id=f"{__name__}.ReviewPanel", _shown=self._told(""))
        hear_beside_cells(self)
        self.on_msg(self._on_message)

    def refresh(self, error: str = "") -> None:
        """Show what there is now, and an error under it."""
        self._shown = self._told(error)

    def show(self) -> None:
        """Show it under the cell."""
        bundle = self._repr_mimebundle_()
        assert bundle is not None
        told = self._shown
        data = {**bundle[0], "text/plain": f"review: {told['progress']}, saved in {told['file']}"}
        display(data, metadata=bundle[1], raw=True)  # type: ignore[no-untyped-call]

    def _told(self, error: str) -> dict[str, Any]:
        told = dict(self._asked_what())
        told["pieces"] = [(name, *_cut(text), column) for name, text, column in told["pieces"]]
        return dict(cleaned({**told, "error": error}))

    def _on_message(self, _: object, message: Any, buffers: object) -> None:
        """Called for every message of a view. Any: what a browser sent."""
        if not isinstance(message, Mapping):
            return
        what, key, text = (message.get(name) for name in ("do", "key", "note"))
        if not (isinstance(what, str) and isinstance(key, str) and isinstance(text, str)):
            return
        try:
            self._asked_to(what, key, text)
        except RapidFireError as error:
            self.refresh(str(error))
        except Exception as error:  # the comm's own handler would print it into a cell
            logger.exception("review message")
            self.refresh(in_a_line(error))


def _cut(text: str) -> tuple[str, int]:
    """A text as long as a page bears, and how many letters are left out."""
    return text[:MOST], max(len(text) - MOST, 0)
