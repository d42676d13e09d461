"""The feed: one thread that tells open views what is new, seldom and in few bytes.

It follows the event log; while no view is open nothing is computed or sent. The thread ends when
the last view closes and no static twin waits for the end of training; the next view starts another.
"""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rapidfire_jupyter.events import Event, EventLog
from rapidfire_jupyter.ui.delta import Known, all_known, changes
from rapidfire_jupyter.ui.fold import Fold
from rapidfire_jupyter.ui.view import Facts, snapshot

Send = Callable[[Mapping[str, Any], list[bytes]], None]  # Any: a message of `wire`
Twin = Callable[[Fold, Facts], None]

GAP_S = 0.25  # least time between two messages: at most four a second
BYTES_PER_S = 17_000.0  # to the browser, on average; snapshots and answers not counted
BEAT_S = 2.0  # how often the head is told while training, or shortly after a change
TRAILING_S = 10.0  # so long after the last change a lost message is noticed by the next beat
SILENT_S = 60.0  # a view that says nothing for so long counts as closed
TWIN_S = 30.0  # least time between two pictures of the static twin
_AT_ONCE = frozenset({"op", "run_completed", "run_failed", "alert", "fit_started", "attached"})
_AT_ONCE |= {"ended"}

logger = logging.getLogger(__name__)


@dataclass
class _View:
    heard: float
    wants: bool  # a snapshot


class Feed:
    """Owns the thread that sends. Methods are safe from any thread and return at once.

    Args:
        log: Followed from its first event.
        facts: Gives what is not in the log; called by the thread.
        send: Sends a message with buffers to all views.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        log: EventLog,
        facts: Callable[[], Facts],
        send: Send,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log, self._facts, self._send, self._clock = log, facts, send, clock
        self._lock = threading.RLock()  # over everything below
        self._fold, self._known, self.seq = Fold(), Known(), 0
        self._views: dict[str, _View] = {}
        self._outbox: deque[tuple[Mapping[str, Any], list[bytes]]] = deque()
        self._twin: Twin | None = None
        self._twin_at, self._twin_seq, self._twin_training = -TWIN_S, -1, False
        self._sent_at = self._allowed_at = self._beat_at = self._changed_at = -TRAILING_S
        self._urgent = self._closed = False
        self._news = threading.Event()  # something happened
        self._now = threading.Event()  # it cannot wait for the pace
        self._thread: threading.Thread | None = None
        self._thread_lock = threading.Lock()  # nothing else is locked by its holder
        self._failures: set[str] = set()
        self._unsubscribe = log.subscribe(self._listen)

    # ---- for everybody ----

    def open(self, view: str) -> None:
        """A view has opened, or wants a snapshot: it gets one."""
        with self._lock:
            self._views[view] = _View(self._clock(), True)
        self._stir()

    def serve(self) -> None:
        """Send what is due from the caller's thread: Colab shows only what a callback sends."""
        with self._lock:
            if self._views:
                self._fold.read(self._log.since(self._fold.next_seq))
                self._tell(self._facts(), self._clock())

    def heard(self, view: str) -> bool:
        """A view is there; False if it counts as closed, so that it must say hello."""
        known = self._views.get(view)  # without the lock: an order must not wait for a snapshot
        if known is not None:
            known.heard = self._clock()
        return known is not None

    def close(self, view: str) -> None:
        """A view has closed."""
        with self._lock:
            self._views.pop(view, None)
        self._stir()

    def post(self, message: Mapping[str, Any], buffers: list[bytes] | None = None) -> None:
        """Send a message soon, from the feed's thread. Any: a message of `wire`.

        It takes no lock that is held for long: the engine's thread calls it.
        """
        self._outbox.append((message, buffers or []))
        self._stir()

    def show_twin(self, first: Twin, later: Twin | None) -> None:
        """Show a static twin, and refresh it from now on: rarely, and when training ends.

        Args:
            first: Called now, in this thread.
            later: Called at each refresh, by the feed's thread; None for no refresh.
        """
        with self._lock:
            self._fold.read(self._log.since(self._fold.next_seq))
            facts = self._facts()
            first(self._fold, facts)
            if later is None:
                return
            self._twin, self._twin_at = later, self._clock()
            self._twin_seq, self._twin_training = self._fold.next_seq, facts.status == "running"
        self._stir()

    def flush(self) -> None:
        """Bring the static twin up to date now, in the caller's thread."""
        with self._lock:
            self._refresh_twin(self._facts(), at_once=True)

    def stop(self) -> None:
        """End the feed for good."""
        self._unsubscribe()
        with self._lock:
            self._closed, self._twin = True, None
            self._views.clear()
        self._stir()

    @property
    def views(self) -> int:
        """Number of open views."""
        with self._lock:
            return len(self._views)

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread to end; False if it goes on after `timeout` seconds."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout)
        return thread is None or not thread.is_alive()

    # ---- the log's thread ----

    def _listen(self, event: Event) -> None:
        """Quick, and without our lock: called under the log's."""
        if event.kind in _AT_ONCE:
            self._urgent = True
            self._now.set()
        if event.kind in _AT_ONCE or self._views:
            self._news.set()
            if self._views or self._twin is not None:
                self._ensure_thread()

    # ---- the feed's thread ----

    def _stir(self) -> None:
        self._now.set()
        self._news.set()
        if self._outbox or self._views or self._twin is not None:
            self._ensure_thread()

    def _ensure_thread(self) -> None:
        with self._thread_lock:
            if self._thread is None:
                name = "rapidfire-panel"
                self._thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._thread.start()

    def _ends(self) -> bool:
        """Whether the thread may end: what comes after this starts another one."""
        with self._thread_lock:
            if self._news.is_set():
                return False
            self._thread = None
            return True

    def _work(self) -> None:
        patience: float | None = 0.0
        while patience is not None:
            self._news.wait(patience)
            self._news.clear()
            due = self._sent_at + GAP_S if self._urgent else self._allowed_at
            self._now.wait(max(0.0, due - self._clock()))
            self._now.clear()
            try:
                patience = self._turn()
            except Exception as error:  # a view must never cost others, or training, anything
                if repr(error) not in self._failures:
                    logger.exception("the panel cannot be told what is new")
                self._failures.add(repr(error))
                patience = 1.0

    def _turn(self) -> float | None:
        """Send what is due.

        Returns:
            Seconds until something is due again if nothing happens; None if the thread is over.
        """
        with self._lock:
            now = self._clock()
            self._views = {k: v for k, v in self._views.items() if now - v.heard < SILENT_S}
            facts = self._facts()
            self._send_outbox()
            if self._views:
                self._fold.read(self._log.since(self._fold.next_seq))
                self._tell(facts, now)
            self._refresh_twin(facts)
            training = facts.status == "running"
            if not self._views and not (self._twin is not None and training):
                return None if self._ends() else 0.0
            if not self._views:
                return max(0.1, self._twin_at + TWIN_S - now)
            if training or now - self._changed_at < TRAILING_S:
                return max(0.05, self._beat_at + BEAT_S - now)
            return max(0.1, min(v.heard for v in self._views.values()) + SILENT_S - now)

    def _send_outbox(self) -> None:
        while self._outbox:
            message, buffers = self._outbox.popleft()
            self._send(message, buffers)

    def _tell(self, facts: Facts, now: float) -> None:
        wanted = any(view.wants for view in self._views.values())
        others = any(not view.wants for view in self._views.values())
        may = now >= self._allowed_at or (self._urgent and now >= self._sent_at + GAP_S)
        if (may and not wanted) or (wanted and others):
            self._send_changes(facts, now)
        elif not wanted:
            self._news.set()  # what waits for the pace is due then
        if wanted:
            for view in self._views.values():
                view.wants = False
            message, numbers = snapshot(self._fold, facts, self.seq, time.time())
            self._known = all_known(self._fold, message["rows"], message["head"], self.seq)
            self._send(message, [numbers])
            self._sent_at = self._beat_at = self._changed_at = now
            self._allowed_at = max(self._allowed_at, now + GAP_S)

    def _send_changes(self, facts: Facts, now: float) -> None:
        fresh = now - self._changed_at < TRAILING_S
        beat = now >= self._beat_at + BEAT_S and (facts.status == "running" or fresh)
        known, seq = self._known, self.seq + 1
        delta = changes(self._fold, facts, known, seq, time.time(), beat=beat)
        self._urgent = False
        if delta is None:
            return
        message, numbers = delta
        if message["blocks"] or message["rows"] or message["entries"] or message["slices"]:
            self._changed_at = now
        self.seq = seq
        self._send(message, [numbers])
        size = len(json.dumps(message)) + len(numbers)
        self._sent_at = now
        self._beat_at = now if message["head"] is not None else self._beat_at
        self._allowed_at = max(self._allowed_at, now) + max(GAP_S, size / BYTES_PER_S)

    def _refresh_twin(self, facts: Facts, at_once: bool = False) -> None:
        """Give the static twin what is new, every half minute and when training ends."""
        if self._twin is None:
            return
        training, now = facts.status == "running", self._clock()
        ended = self._twin_training and not training
        self._twin_training = training
        if not (at_once or ended or now - self._twin_at >= TWIN_S):
            return
        self._fold.read(self._log.since(self._fold.next_seq))
        if self._fold.next_seq == self._twin_seq:
            return
        self._twin_at, self._twin_seq = now, self._fold.next_seq
        self._twin(self._fold, facts)
