"""The panel: one anywidget model per experiment, shown as often as one likes.

Callbacks run beside a busy cell, in a subshell's thread: they check, submit or look up, and return.
Curves and table are told by the feed's thread. Nothing here trains, prints or blocks.
"""

import base64
import logging
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any

import anywidget
import traitlets
from IPython.core.getipython import get_ipython
from IPython.display import display

from rapidfire_jupyter.errors import RapidFireError
from rapidfire_jupyter.ui import asks, device
from rapidfire_jupyter.ui.actions import Actions
from rapidfire_jupyter.ui.feed import Feed
from rapidfire_jupyter.ui.fold import Fold
from rapidfire_jupyter.ui.orders import Orders, text
from rapidfire_jupyter.ui.scripts import STATIC, script, style
from rapidfire_jupyter.ui.texts import cleaned, in_a_line
from rapidfire_jupyter.ui.twin import twin_html, twin_text
from rapidfire_jupyter.ui.view import Facts, snapshot
from rapidfire_jupyter.ui.wire import Answer

SAVED_SHARE = 0.25  # of a snapshot's size, in saved notebooks
logger = logging.getLogger(__name__)
# Questions that are answered in a thread of their own.
_SLOW = frozenset({"export", "sample", "samples", "analysis", "policies"})


_ESM = script(*(STATIC / "PARTS").read_text(encoding="utf-8").split())
_CSS = style("panel.css", "table.css")


class Panel(anywidget.AnyWidget):
    """The live view of an experiment; a cell that ends with it shows it.

    Beside it a static twin is shown where no live view can be: in a saved notebook, or without
    JavaScript. The live view hides it.
    """

    _esm = traitlets.Unicode(_ESM).tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    _snap = traitlets.Dict().tag(sync=True)  # drawn where saved widget state is all there is

    def __init__(self, actions: Actions) -> None:
        self._actions = actions
        self._feed = Feed(actions.log, self.facts, self._tell_all)
        self._orders = Orders(actions, self._answer, self._feed.post)
        self.twin_id = f"rapidfire-twin-{secrets.token_hex(4)}"
        # Style sheets are told apart by the id, and each experiment hides its own twin only.
        super().__init__(
            _css=_CSS + _hiding(self.twin_id), _anywidget_id=f"{__name__}.{self.twin_id}"
        )
        hear_beside_cells(self)
        self.on_msg(self._on_message)

    # ---- what it knows ----

    def facts(self) -> Facts:
        """What is not in the event log."""
        standing = self._actions.standing()
        live = standing.status not in ("empty", "ended") and not standing.read_only
        live_only = ("ops", "schedule") if live else ()
        answered = ("samples",) if self._actions.answered() else ()
        can = (*live_only, "data", *answered, *self._actions.more)
        return Facts(
            name=self._actions.name,
            status=standing.status,
            read_only=standing.read_only or not live,
            reason=standing.reason,
            device=device.device(),
            memory=device.memory(),
            can=can,
        )

    # ---- what a view says ----

    def _on_message(self, _: object, message: Any, buffers: object) -> None:
        """Called for every message of a view. Any: what a browser sent."""
        try:
            if isinstance(message, Mapping):
                self._take(message)
        except RapidFireError as error:
            logger.debug("message refused: %s", error)
        except Exception:  # the comm's own handler would print it into a cell
            logger.exception("panel message")

    def _take(self, message: Mapping[str, Any]) -> None:
        kind, view = message.get("type"), text(message, "view")
        if kind == "bye":
            self._feed.close(view)
            return
        known = self._feed.heard(view)
        if kind == "hello" or not known:
            self._open(view)
        if kind == "ping":
            self.send({"type": "pong", "view": view, "seq": self._feed.seq})
        elif kind == "order":
            self._orders.take(message)
        elif kind == "ask":
            self._ask(view, message)

    def _open(self, view: str) -> None:
        self._feed.open(view)
        self._feed.serve()

    def _ask(self, view: str, message: Mapping[str, Any]) -> None:
        ask_id, what = text(message, "id"), text(message, "what")
        if what == "snapshot":
            self._open(view)
        elif what in _SLOW:
            work = (view, ask_id, what, message.get("args"))
            name = "rapidfire-panel-answer"
            threading.Thread(target=self._reply, args=work, name=name, daemon=True).start()
        else:
            self._reply(view, ask_id, what, message.get("args"))

    def _reply(self, view: str, ask_id: str, what: str, args: Any) -> None:  # Any: untrusted
        answer: Answer = {
            "type": "answer",
            "id": ask_id,
            "view": view,
            "ok": True,
            "error": "",
            "data": {},
        }
        buffers: tuple[bytes, ...] = ()
        try:
            data, buffers = asks.reply(self._actions, what, args if isinstance(args, dict) else {})
            answer["data"] = dict(data)
        except RapidFireError as error:
            answer["ok"], answer["error"] = False, str(error)
        except Exception as error:  # shown where it was asked, not in a cell
            logger.debug("question %s", what, exc_info=True)
            answer["ok"], answer["error"] = False, in_a_line(error)
        self.send(answer, list(buffers))

    def send(self, content: Any, buffers: Any = None) -> None:
        """Send a message of `wire`; a text that UTF-8 cannot hold does not cost all of it."""
        super().send(cleaned(content), buffers)

    def _answer(self, message: Mapping[str, Any]) -> None:
        self.send(dict(message))

    def _tell_all(self, message: Mapping[str, Any], buffers: list[bytes]) -> None:
        self.send(dict(message), buffers)

    # ---- where it is shown ----

    def _ipython_display_(self) -> None:
        """Show the live view, and its static twin under it."""
        if not has_widgets():
            self._feed.show_twin(lambda fold, facts: print(twin_text(fold, facts)), None)
            return
        bundle = self._repr_mimebundle_()
        assert bundle is not None
        display(bundle[0], metadata=bundle[1], raw=True)  # type: ignore[no-untyped-call]
        self._feed.show_twin(self._show_twin, self._update_twin)

    def _show_twin(self, fold: Fold, facts: Facts) -> None:
        display(self._twin(fold, facts), display_id=self.twin_id, raw=True)  # type: ignore[no-untyped-call]

    def _update_twin(self, fold: Fold, facts: Facts) -> None:
        display(self._twin(fold, facts), display_id=self.twin_id, raw=True, update=True)  # type: ignore[no-untyped-call]
        if facts.status != "running":
            message, numbers = snapshot(fold, facts, 0, time.time(), SAVED_SHARE)
            self._snap = {**cleaned(message), "buffer64": base64.b64encode(numbers).decode()}

    def _twin(self, fold: Fold, facts: Facts) -> dict[str, str]:
        page = twin_html(fold, facts)
        return {
            "text/html": f'<div class="{self.twin_id}">{page}</div>',
            "text/plain": twin_text(fold, facts),
        }

    def flush(self) -> None:
        """Bring what a saved notebook holds up to date, in this thread."""
        self._feed.flush()

    def close(self) -> None:
        """Close every view of it, for good."""
        self._feed.stop()
        self.layout.close()  # a widget of its own, which nobody else would close
        super().close()


def has_widgets() -> bool:
    """Whether this is a kernel, whose front end may show a widget."""
    shell = get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


def hear_beside_cells(widget: anywidget.AnyWidget) -> None:
    """Let a widget's clicks act while a cell runs.

    ipykernel 7.4 hands messages of a comm to the shell that sent on it last. Our thread and cells
    count as the main shell, so clicks would wait for the running cell.
    """
    if hasattr(widget.comm, "_reply_subshell_for"):
        widget.comm._reply_subshell_for = lambda data, default: default


def _hiding(twin_id: str) -> str:
    """The rule by which a live view hides its static twin, with the space it would take."""
    return f"\n.{twin_id}{{display:none}}\n.jp-OutputArea-child:has(.{twin_id}){{display:none}}"
