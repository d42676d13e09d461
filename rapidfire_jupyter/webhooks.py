"""Who is told of alerts outside the notebook: the user's functions and URLs.

Each alert is told in a daemon thread of its own turn, so training never waits; what goes wrong
becomes an event, never an exception.
"""

import json
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.request import Request, urlopen

from rapidfire_jupyter.oversight import Listener

TIMEOUT_S = 10.0

Alert = Mapping[str, Any]  # Any: JSON values
Note = Callable[[str], object]

_waiting: "queue.Queue[tuple[Listener, Alert, Note]]" = queue.Queue()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def tell(listeners: Sequence[Listener], alert: Alert, note: Note) -> None:
    """Tell each listener of an alert, soon; returns at once.

    Args:
        listeners: Functions are called with the alert as a dict, URLs get it as JSON by POST.
        alert: Its experiment, run, kind, level, step, text and remedies.
        note: Called with what went wrong, in one line, in another thread.
    """
    global _thread
    for one in listeners:
        _waiting.put((one, alert, note))
    with _lock:
        if listeners and (_thread is None or not _thread.is_alive()):
            _thread = threading.Thread(target=_work, name="rapidfire-alerts", daemon=True)
            _thread.start()


def _work() -> None:
    while True:
        listener, alert, note = _waiting.get()
        try:
            _tell(listener, alert)
        except Exception as error:  # the user's code, or the network
            what = listener if isinstance(listener, str) else _name(listener)
            note(f"on_alert: {what} failed ({type(error).__name__}: {error})")
        finally:
            _waiting.task_done()


def _name(function: object) -> str:
    return str(getattr(function, "__qualname__", function))


def _tell(listener: Listener, alert: Alert) -> None:
    if not isinstance(listener, str):
        listener(dict(alert))
        return
    body = json.dumps(alert, default=str).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "rapidfire-jupyter"}
    request = Request(listener, data=body, headers=headers)
    with urlopen(request, timeout=TIMEOUT_S) as answer:
        answer.read(1)
