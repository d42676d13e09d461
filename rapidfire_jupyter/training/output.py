"""Where the text of run threads goes: to their run's log, never into a cell.

Bars of tqdm, stdout and stderr, log records and displays; for all other threads nothing changes.

Any: streams, bars and messages as tqdm, ipykernel and IPython define them.
"""

import functools
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

from rapidfire_jupyter import notebook
from rapidfire_jupyter.training.context import current

_thread = threading.local()  # which publisher the thread's displays were taken from


def install() -> None:
    """Route bars, and what cells capture; once per process."""
    _install_tqdm()
    _install_redirection()


def route_streams() -> None:
    """Route stdout, stderr and the console's log handlers as they are now; may be repeated."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _StreamRouter):
            setattr(sys, name, _StreamRouter(stream))
    _install_log_filter()


def _install_tqdm() -> None:
    """Turn bars of run threads off; datasets and transformers would draw them in a user's cell."""
    import tqdm.std

    original = tqdm.std.tqdm.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - replaces tqdm's
        context = current()
        if context is None or kwargs.get("disable"):
            original(self, *args, **kwargs)
            return
        original(self, *args, **{**kwargs, "disable": True})
        what = kwargs.get("desc") or (args[1] if len(args) > 1 else None) or "progress bar"
        context.write(f"{what}: {self.total or '?'} {kwargs.get('unit', 'it')}\n")

    tqdm.std.tqdm.__init__ = __init__


class _StreamRouter:
    """Stands in for sys.stdout or sys.stderr: text of run threads goes to their run's log."""

    def __init__(self, stream: Any) -> None:  # Any: an ipykernel OutStream or a text file
        self.stream = stream

    def write(self, text: str) -> int:
        context = current()
        if context is None:
            return int(self.stream.write(text) or 0)
        context.write(text)
        return len(text)

    def flush(self) -> None:
        if current() is None:
            self.stream.flush()

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _install_redirection() -> None:
    """Keep text of run threads out of what `redirect_stdout` and `%%capture` collect for a cell."""
    from contextlib import redirect_stderr, redirect_stdout

    owners: list[Any] = [redirect_stdout, redirect_stderr]
    if "IPython" in sys.modules:
        from IPython.core.displaypub import CapturingDisplayPublisher
        from IPython.utils.capture import capture_output

        owners.append(capture_output)
        publish = CapturingDisplayPublisher.publish
        CapturingDisplayPublisher.publish = _taking_displays(publish)  # type: ignore[method-assign]
    for owner in owners:
        owner.__enter__ = _routing(owner.__enter__)


def _routing(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def __enter__(self: Any) -> Any:  # noqa: N807 - replaces that of a context manager
        result = original(self)
        route_streams()
        return result

    return __enter__


class _RunRecordFilter(logging.Filter):
    """Takes log records of run threads off a handler and writes them to the run's log, once."""

    _format = logging.Formatter("%(levelname)s %(name)s: %(message)s")

    def filter(self, record: logging.LogRecord) -> bool:
        context = current()
        if context is None:
            return True
        if not hasattr(record, "rapidfire_written"):
            record.rapidfire_written = True
            try:
                text = self._format.format(record)
            except (TypeError, ValueError, KeyError):  # its arguments do not fit its message
                text = f"{record.levelname} {record.name}: {record.msg} {record.args}"
            context.write(f"{text}\n")
        return False


_filter = _RunRecordFilter()


def _install_log_filter() -> None:
    """Filter every handler that writes to a console; a user's log files stay as they are."""
    loggers = [logging.getLogger(), *logging.getLogger().manager.loggerDict.values()]
    handlers = [h for one in loggers if isinstance(one, logging.Logger) for h in one.handlers]
    for handler in (*handlers, logging.lastResort):
        console = isinstance(handler, logging.StreamHandler)
        if console and not isinstance(handler, logging.FileHandler) and handler is not None:
            handler.addFilter(_filter)


def route_displays() -> None:
    """Keep what the calling thread displays (tables, figures) out of cells; its text is logged."""
    publisher: Any = getattr(notebook.shell(), "display_pub", None)
    if hasattr(publisher, "register_hook") and getattr(_thread, "publisher", None) is not publisher:
        publisher.register_hook(_take_display)
        _thread.publisher = publisher


def _take_display(message: dict[str, Any]) -> dict[str, Any] | None:
    """What a kernel's publisher calls with each message; None keeps it from being sent."""
    if current() is None:
        return message
    _log_display(message["content"].get("data", {}))
    return None


def _taking_displays(publish: Callable[..., None]) -> Callable[..., None]:
    """Keep displays of run threads out of what `%%capture` collects for a cell."""

    @functools.wraps(publish)
    def taking(self: Any, data: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        if current() is None:
            publish(self, data, *args, **kwargs)
        else:
            _log_display(data)

    return taking


def _log_display(data: dict[str, Any]) -> None:
    context, text = current(), data.get("text/plain")
    if context is not None and text:
        context.write(f"{text}\n")
