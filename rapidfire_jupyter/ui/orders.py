"""Orders of a view: checked, done once, acknowledged twice.

An order is untrusted: it comes from a browser. Its op is submitted in the callback, which never
waits; what came of it follows when the op has acted.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from rapidfire_jupyter.errors import RapidFireError
from rapidfire_jupyter.ops import KINDS, WHOLE_EXPERIMENT, OpHandle
from rapidfire_jupyter.ui.actions import Actions
from rapidfire_jupyter.ui.lines import magic_line
from rapidfire_jupyter.ui.texts import in_a_line
from rapidfire_jupyter.ui.wire import Ack

REMEMBERED = 1_000  # ids of orders: one that comes again acts once
_KEYS: Mapping[str, frozenset[str]] = {
    "boost": frozenset({"weight"}),
    "clone": frozenset({"changes", "warm"}),
    "mix": frozenset({"weights"}),
    "resume": frozenset({"num_train_epochs", "max_steps"}),
    "policy": frozenset({"name", "mode", "settings"}),
}
_Status = Literal["pending", "applied", "already", "refused"]


class MessageError(RapidFireError):
    """A message of a view that is none of `wire`."""


class Orders:
    """Remembers the orders of all views of one experiment.

    Args:
        actions: What may be asked of the experiment.
        answer: Sends an ack at once; called in the callback's thread.
        tell: Sends an ack soon; called in the engine's thread too, so it must be quick.
    """

    def __init__(
        self, actions: Actions, answer: Callable[[Ack], None], tell: Callable[[Ack], None]
    ) -> None:
        self._actions, self._answer, self._tell = actions, answer, tell
        self._acks: OrderedDict[str, Ack | None] = OrderedDict()  # None: it is being done
        self._lock = threading.Lock()

    def take(self, message: Mapping[str, Any]) -> None:
        """Do an order if it is new; its ack is sent either way. Any: what a browser sent.

        Raises:
            MessageError: It has no id to answer to.
        """
        order_id = text(message, "id")
        with self._lock:
            known = self._acks.get(order_id)
            new = order_id not in self._acks
            if new:
                self._acks[order_id] = None
                while len(self._acks) > REMEMBERED:
                    self._acks.popitem(last=False)
        if new:
            self._do(order_id, message)
        elif known is not None:
            self._answer(known)

    def _do(self, order_id: str, message: Mapping[str, Any]) -> None:
        line, run = "", None
        try:
            kind, run, args = checked(message)
            name = self._actions.name if self._actions.several() else ""
            line = magic_line(kind, run, args, name)
            handle = self._actions.order(kind, run, args)
        except Exception as error:  # an order without an answer would count as being done for good
            reason = str(error) if isinstance(error, RapidFireError) else in_a_line(error)
            self._keep(_ack(order_id, "refused", reason, run, None, line), self._answer)
            return

        def settled(done: OpHandle) -> None:
            ack = _ack(order_id, done.status, done.reason, done.run_id, done.step, line)
            self._keep(ack, self._tell)

        # First the one, then the other: a view never sees "pending" last.
        self._keep(_ack(order_id, "pending", "", run, None, line), self._answer)
        handle.then(settled)

    def _keep(self, ack: Ack, send: Callable[[Ack], None]) -> None:
        with self._lock:
            if ack["id"] in self._acks:
                self._acks[ack["id"]] = ack
        send(ack)


def checked(message: Mapping[str, Any]) -> tuple[str, int | None, dict[str, Any]]:
    """Kind, run and arguments of an order. Any: what a browser sent, then JSON values.

    Raises:
        MessageError: It is no order.
    """
    kind, run, args = message.get("kind"), message.get("run"), message.get("args") or {}
    if kind not in KINDS:
        raise MessageError(f"an order's kind is one of {', '.join(KINDS)}, got {kind!r:.80}")
    if kind in WHOLE_EXPERIMENT:
        run = None
    elif type(run) is not int:
        raise MessageError(f"{kind} needs a run's number, got {run!r:.80}")
    if not isinstance(args, Mapping):
        raise MessageError(f"args of {kind} are an object, got {args!r:.80}")
    known = _KEYS.get(str(kind), frozenset())
    for key in args:
        if key not in known:
            raise MessageError(
                f"{kind} takes {', '.join(sorted(known)) or 'no args'}, got {key!r:.80}"
            )
    given = dict(args)
    if kind == "boost":
        given["weight"] = _weight(args.get("weight", 2.0))
    if kind == "clone":
        given = {"changes": named_values(args, "changes"), "warm": flag(args, "warm")}
    if kind == "mix":
        given = {"weights": named_values(args, "weights")}
    if kind == "policy":
        settings = named_values(args, "settings")
        given = {"name": text(args, "name"), "mode": text(args, "mode"), "settings": settings}
    return str(kind), run, given


def _weight(value: Any) -> float:  # Any: what a browser sent
    try:
        if isinstance(value, int | float) and type(value) is not bool and math.isfinite(value):
            return float(value)
    except OverflowError:  # a whole number that no float holds
        raise MessageError("weight is a number of usual size, got one above 1e308") from None
    raise MessageError(f"weight is a number, got {value!r:.80}")


def named_values(args: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Changed hyperparameters by path, or weights by task. Any: what a browser sent, then JSON.

    Raises:
        MessageError: They are no object with names as keys.
    """
    values = args.get(name) or {}
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise MessageError(f"{name} are an object, got {values!r:.80}")
    return dict(values)


def flag(args: Mapping[str, Any], name: str) -> bool:
    """A truth value, false if it is not given. Any: what a browser sent.

    Raises:
        MessageError: It is something else.
    """
    value = args.get(name, False)
    if not isinstance(value, bool):
        raise MessageError(f"{name} is true or false, got {value!r:.80}")
    return value


def text(message: Mapping[str, Any], name: str) -> str:
    """A short text. Any: what a browser sent.

    Raises:
        MessageError: It is something else.
    """
    value = message.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 200:
        raise MessageError(f"{name} is a text of 1 to 200 characters, got {value!r:.80}")
    return value


def _ack(
    order_id: str, status: str, reason: str, run: int | None, step: int | None, line: str
) -> Ack:
    assert status in get_args(_Status)
    return {
        "type": "ack",
        "id": order_id,
        "status": status,  # type: ignore[typeddict-item]
        "reason": reason,
        "run": run,
        "step": step,
        "line": line,
    }
