"""The kernel's end of the labextension: a comm that tells of all experiments of this kernel.

A page of JupyterLab opens a comm with the target `rapidfire` on each kernel it sees. Each open
comm is told what changed, at most once in `every_s` seconds, and nothing when nothing changes. One
thread sends, and only while a page listens. The callbacks run in whatever thread the kernel
chooses, also beside a running cell: they check the message, hand it on, and answer.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from rapidfire_jupyter import notebook
from rapidfire_jupyter.errors import RapidFireError
from rapidfire_jupyter.events import EventLog
from rapidfire_jupyter.ui.actions import Actions
from rapidfire_jupyter.ui.brief import Brief, Seen, brief, changed, lost, see
from rapidfire_jupyter.ui.orders import Orders
from rapidfire_jupyter.ui.texts import cleaned
from rapidfire_jupyter.ui.wire import Ack

TARGET = "rapidfire"
EVERY_S = 1.0  # unless the page asks for something else
SILENT_S = 150.0  # a page that says nothing for so long has gone; hidden ones speak once a minute
LOOK_S = 5.0  # how often it is looked for pages that have gone
GONE = "this kernel no longer has the experiment"


@dataclass(frozen=True)
class Source:
    """One experiment of this kernel.

    Attributes:
        panel: Gives the id of its panel's widget model; makes the panel if there is none.
    """

    actions: Actions
    panel: Callable[[], str]

    @property
    def key(self) -> str:
        """Its folder, which no other experiment has."""
        return str(self.actions.folder)


class Channel(Protocol):
    """What is used of a `comm.BaseComm`."""

    comm_id: str

    def send(self, data: Any) -> None:
        """Send a message. Any: JSON values."""

    def close(self) -> None:
        """Close this end, and tell the other."""

    def on_msg(self, callback: Callable[[dict[str, Any]], None]) -> None:
        """Call back with each message."""

    def on_close(self, callback: Callable[[dict[str, Any]], None]) -> None:
        """Call back when the other end has closed."""


class Page:
    """One open comm: what it was told, and when it was last heard."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.every_s = EVERY_S
        self.seq = 0
        self.heard = time.monotonic()
        self.sent_at = 0.0
        self.told: dict[str, Brief] | None = None  # None: everything is to be told
        self.orders: dict[str, Orders] = {}  # by experiment

    def send(self, data: Any) -> None:
        """Send a message; a text that UTF-8 cannot hold does not cost all of it. Any: JSON."""
        self.channel.send(cleaned(data))


class Publisher:
    """Tells pages of the kernel's experiments; one thread, while there are pages.

    Args:
        sources: Gives the experiments of now; called in the thread, must be quick.
        clock: Unix time in seconds.
    """

    def __init__(
        self, sources: Callable[[], Iterable[Source]], clock: Callable[[], float] = time.time
    ) -> None:
        self._sources = sources
        self._clock = clock
        self._pages: dict[str, Page] = {}
        self._seen: dict[str, tuple[EventLog, Seen]] = {}
        self._followed: dict[str, Callable[[], None]] = {}
        self._settled: list[tuple[Page, Ack]] = []
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, channel: Channel, message: dict[str, Any]) -> None:
        """A page has opened a comm; the comm manager calls it with the first message."""
        if hasattr(channel, "_reply_subshell_for"):
            # ipykernel 7.4 answers in the shell that last sent, behind the running cell; the page
            # has chosen a subshell so that it need not wait.
            channel._reply_subshell_for = lambda data, default: default
        page = Page(channel)
        with self._lock:
            self._pages[channel.comm_id] = page
        channel.on_msg(lambda message: self._receive(page, message["content"]["data"]))
        channel.on_close(lambda message: self._close(page))
        self._receive(page, message["content"]["data"])

    @property
    def pages(self) -> int:
        """Pages that listen."""
        return len(self._pages)

    def look(self) -> None:
        """Something has changed that no log tells, like a new experiment."""
        self._changed.set()

    # ---- messages of a page ----

    def _receive(self, page: Page, data: Any) -> None:  # Any: whatever the page has sent
        page.heard = time.monotonic()
        kind = data.get("type") if isinstance(data, dict) else None
        if kind == "hello":
            every = data.get("every_s")
            if isinstance(every, int | float) and 0.2 <= every <= 3600:
                page.every_s = float(every)
            page.told, page.sent_at = None, 0.0
            self._start()
            self._changed.set()
        elif kind == "ping":
            page.send({"type": "pong", "seq": page.seq})
            if data.get("seq") != page.seq:
                page.told = None
            self._changed.set()
            self._start()
        elif kind == "order" and isinstance(data.get("id"), str):
            self._order(page, data)
        elif kind == "open_panel" and isinstance(data.get("id"), str):
            self._panel(page, data)

    def _order(self, page: Page, data: dict[str, Any]) -> None:
        source = self._source(data.get("experiment"))
        if source is None:
            ack = {"type": "ack", "id": data["id"], "status": "refused", "reason": GONE}
            page.send({**ack, "run": None, "step": None, "line": ""})
            return
        if source.key not in page.orders:
            page.orders[source.key] = Orders(
                source.actions, page.send, lambda ack: self._settle(page, ack)
            )
        page.orders[source.key].take(data)

    def _settle(self, page: Page, ack: Ack) -> None:
        """An op has acted; called in the engine's thread, so the thread here tells the page."""
        with self._lock:
            self._settled.append((page, ack))
        self._changed.set()

    def _panel(self, page: Page, data: dict[str, Any]) -> None:
        model, error = "", GONE
        source = self._source(data.get("experiment"))
        if source is not None:
            try:
                model, error = source.panel(), ""
            except (RapidFireError, ImportError) as refused:
                error = str(refused)
        page.send({"type": "model", "id": data["id"], "model": model, "error": error})

    def _source(self, key: Any) -> Source | None:  # Any: whatever the page has sent
        return next((s for s in self._sources() if s.key == key), None)

    def _close(self, page: Page) -> None:
        with self._lock:
            self._pages.pop(page.channel.comm_id, None)
        self._changed.set()

    # ---- the thread ----

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and self._pages:
                self._thread = threading.Thread(
                    target=self._work, name="rapidfire-comm", daemon=True
                )
                self._thread.start()

    def _work(self) -> None:
        try:
            while self._drop_silent():
                self._changed.clear()
                self._acknowledge()
                self._changed.wait(self._tell())
        finally:
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = None  # a page's next message starts another

    def _drop_silent(self) -> bool:
        """Close the comms of pages that have gone; if none is left forget the logs: False.

        A page that only slept opens another comm when it hears of it.
        """
        now = time.monotonic()
        silent = [page for page in list(self._pages.values()) if now - page.heard > SILENT_S]
        for page in silent:
            page.channel.close()
        with self._lock:
            for page in silent:
                self._pages.pop(page.channel.comm_id, None)
            if self._pages:
                return True
            followed, self._followed, self._seen, self._thread = self._followed, {}, {}, None
        for unfollow in followed.values():
            unfollow()
        return False

    def _acknowledge(self) -> None:
        with self._lock:
            settled, self._settled = self._settled, []
        for page, ack in settled:
            page.send(ack)

    def _tell(self) -> float:
        """Send what is due; gives the seconds after which to look again."""
        with self._lock:
            pages = list(self._pages.values())
        now = time.monotonic()
        due = [page for page in pages if page.sent_at + page.every_s <= now]
        later = [page.sent_at + page.every_s - now for page in pages if page not in due]
        if due:
            briefs = self._briefs()
            for page in due:
                message = update(page.told, briefs)
                if message is not None:
                    page.seq, page.told, page.sent_at = page.seq + 1, briefs, now
                    page.send({**message, "seq": page.seq, "time": self._clock()})
        return min([LOOK_S, *later])

    def _briefs(self) -> dict[str, Brief]:
        briefs = {source.key: self._brief(source) for source in self._sources()}
        for key in set(self._followed) - set(briefs):
            self._followed.pop(key)()
            self._seen.pop(key, None)
        return briefs

    def _brief(self, source: Source) -> Brief:
        key, log = source.key, source.actions.log
        known, seen = self._seen.get(key, (log, Seen()))
        if known is not log:  # the experiment was ended and made again
            seen = Seen()
            self._followed.pop(key)()
        if key not in self._followed:
            self._followed[key] = log.subscribe(lambda event: self._changed.set())
        seen = see(seen, log.since(seen.count))
        self._seen[key] = (log, seen)
        standing = source.actions.standing()
        state = source.actions.state()
        return brief(key, source.actions.name, standing.status, standing.reason, state, seen)


def update(told: dict[str, Brief] | None, now: dict[str, Brief]) -> dict[str, Any] | None:
    """The `Experiments` message from what was told to what is, but for its number and time.

    None if nothing has changed. Any: JSON values.
    """
    gone = [key for key in told or {} if key not in now]
    full = told is None or any(lost(told.get(key), item) for key, item in now.items())
    if full:
        items = list(now.values())
    else:
        assert told is not None
        found = (changed(told.get(key), item) for key, item in now.items())
        items = [item for item in found if item is not None]
        if not items and not gone:
            return None
    return {"type": "experiments", "full": full, "experiments": items, "gone": gone}


_publisher: Publisher | None = None
_publisher_lock = threading.Lock()


def register(sources: Callable[[], Iterable[Source]]) -> None:
    """Let pages of JupyterLab ask this kernel; in anything but a kernel it does nothing.

    Again is harmless: pages are then told to look.
    """
    global _publisher
    if not in_kernel():
        return
    with _publisher_lock:
        if _publisher is None:
            from comm import get_comm_manager

            _publisher = Publisher(sources)
            get_comm_manager().register_target(TARGET, _publisher.open)
    _publisher.look()


def in_kernel() -> bool:
    """Whether this Python is an IPython kernel; IPython is not imported for that."""
    return getattr(notebook.shell(), "kernel", None) is not None
