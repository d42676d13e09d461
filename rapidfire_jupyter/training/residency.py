"""Where the tensors of bases and runs are: on the device, in host memory, or on disk.

One `Residency` keeps what is on a device within a budget. Before a run gets the baton, what it
needs is brought in, and what is needed last, by the schedule, makes room. Tensors keep their
identity: only their `.data` is replaced, so optimizers, PEFT and accelerate notice nothing, and
bytes are copied as they are, so no number changes. What is away reads as NaN (integers: as their
largest), so a read that should not be cannot go unnoticed: the loss of that run becomes NaN.

On a CPU the same code makes room in RAM; as a small device in tests, and for real with the disk.
Subclasses of Tensor (quantised weights) hold state of their own; they count, but are not moved.
"""

import time
import weakref
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rapidfire_jupyter.training.budget import Budget, mib, mib_apart
from rapidfire_jupyter.training.estimates import Footprint, companions

_MOVABLE = (torch.Tensor, nn.Parameter, nn.Buffer)
_NEVER = 1 << 30


@dataclass(eq=False)
class Item:
    """Tensors over one storage, which move together.

    Attributes:
        views: Each tensor with its size, stride and offset in the storage.
        fixed: Its content never changes, so a copy once made stays good.
        host: Its bytes in host memory; `good` says whether they are the content.
        arriving: A device copy that is being made ahead of its need, and its CUDA event.
    """

    views: list[tuple[weakref.ref[torch.Tensor], torch.Size, tuple[int, ...], int]]
    size_bytes: int
    fixed: bool
    movable: bool
    resident: bool = True
    host: torch.Tensor | None = None
    good: bool = False
    file: Path | None = None
    arriving: tuple[torch.UntypedStorage, Any] | None = None  # Any: a CUDA event, or None
    used: int = 0


@dataclass
class Moved:
    """Bytes moved to and from the device, and seconds that training waited for it."""

    in_bytes: int = 0
    out_bytes: int = 0
    disk_bytes: int = 0
    seconds: float = 0.0


@dataclass
class _Holding:
    items: list[Item] = field(default_factory=list)
    reserve_bytes: int = 0


class Residency:
    """Keeps the tensors of several owners (bases, runs) on a device within a budget.

    For one thread at a time: whoever holds the baton.
    """

    def __init__(self, device: torch.device, budget: Budget, folder: Path) -> None:
        self.device, self.budget = device, budget
        self.moved = Moved()
        self._folder = folder
        self._held: dict[Hashable, _Holding] = {}
        self._of: dict[int, Item] = {}  # by the id of a live tensor
        self._ahead: tuple[Hashable, ...] = ()
        self._clock = 0
        self._files = 0
        self._host_bytes = 0
        cuda = device.type == "cuda"
        # Any: a CUDA stream
        self._side: Any = torch.cuda.Stream(device) if cuda else None  # type: ignore[no-untyped-call]

    # ---- who holds what ----

    def settle(
        self, owner: Hashable, tensors: Iterable[torch.Tensor], reserve: int, fixed: bool = False
    ) -> None:
        """Tell what an owner holds now; all of it that was not known is on the device.

        Args:
            reserve: Bytes it needs besides while it computes.
            fixed: None of it that is new will ever change.
        """
        items: dict[int, Item] = {}
        fresh: dict[int, Item] | None = None
        for tensor in tensors:
            if tensor.device.type != self.device.type or tensor.dim() == 0 or not tensor.numel():
                continue
            item = self._of.get(id(tensor))
            if item is None:
                if fresh is None:
                    fresh = self._by_storage()
                item = self._add(tensor, fresh, fixed)
            items[id(item)] = item
        self._held[owner] = _Holding(list(items.values()), reserve)

    def forget(self, owner: Hashable) -> None:
        """An owner has gone; what nobody else holds is dropped with its copies."""
        gone = self._held.pop(owner, None)
        if gone is not None:
            kept = {id(item) for held in self._held.values() for item in held.items}
            for item in gone.items:
                if id(item) not in kept:
                    self._drop_host(item)
                    item.arriving = None

    def reserve(self, owner: Hashable, size_bytes: int) -> None:
        """Tell how many bytes an owner needs besides what it holds, while it computes."""
        self._held[owner].reserve_bytes = size_bytes

    def expect(self, owners: Sequence[Hashable]) -> None:
        """The owners whose turns come next, in order: what they need goes last."""
        self._ahead = tuple(owners)

    def is_resident(self, owner: Hashable) -> bool:
        """Whether all that an owner holds is on the device."""
        return all(item.resident for item in self._held[owner].items)

    def own_bytes(self, owner: Hashable) -> int:
        """Bytes of what an owner holds, but for what is fixed: that it may share."""
        return sum(item.size_bytes for item in self._held[owner].items if not item.fixed)

    def free_bytes(self, owner: Hashable) -> int:
        """Bytes that an owner can have besides what it holds, with all that can move away."""
        return self.budget.device_bytes - self._fixed_bytes(self._held[owner].items)

    def used_bytes(self) -> int:
        """Bytes on the device now."""
        return sum(i.size_bytes for i in self._items() if i.resident or i.arriving is not None)

    def host_bytes(self) -> int:
        """Bytes of copies in host memory now."""
        return self._host_bytes

    # ---- moving ----

    def admit(self, owner: Hashable) -> None:
        """Bring in all that an owner holds, with room for what it needs besides.

        Raises:
            torch.OutOfMemoryError: It does not fit, even alone.
        """
        held = self._held[owner]
        self._clock += 1
        for item in held.items:
            item.used = self._clock
        missing = [item for item in held.items if not item.resident]
        name = f"run {owner}" if isinstance(owner, int) else str(owner)
        with self._timed():
            self._make_room(held.reserve_bytes, held.items, name)
            for item in missing:
                self._bring_in(item)

    def make_room(self, size_bytes: int, owner: Hashable, what: str) -> None:
        """Make room for tensors to come, beside what an owner holds.

        Raises:
            torch.OutOfMemoryError: They do not fit.
        """
        self._make_room(size_bytes, self._held[owner].items if owner in self._held else [], what)

    def prefetch(self, current: Hashable, coming: Hashable) -> None:
        """While one run trains, begin to bring in what the next one needs, if both fit."""
        if coming not in self._held:
            return
        held, now = self._held[coming], self._held[current]
        missing = [
            item
            for item in held.items
            if not item.resident and item.arriving is None and item.host is not None
        ]
        keep = [*now.items, *held.items]
        if not missing or self._fixed_bytes(keep) + now.reserve_bytes > self.budget.device_bytes:
            return
        with self._timed(wait=False):
            self._make_room(now.reserve_bytes, keep, "the next run")
            for item in missing:
                item.arriving = self._copy_in(item, self._side)

    @contextmanager
    def _timed(self, wait: bool = True) -> Iterator[None]:
        """Count the seconds in which tensors are moved, until the device has them if it waits."""
        started, before = time.monotonic(), (self.moved.in_bytes, self.moved.out_bytes)
        yield
        if (
            wait
            and self._side is not None
            and before
            != (
                self.moved.in_bytes,
                self.moved.out_bytes,
            )
        ):
            torch.cuda.current_stream(self.device).synchronize()
        self.moved.seconds += time.monotonic() - started

    def _fixed_bytes(self, keep: Collection[Item]) -> int:
        """Bytes that are on the device whenever all of `keep` is."""
        kept = {id(item) for item in keep}
        return sum(
            item.size_bytes for item in self._items() if id(item) in kept or not item.movable
        )

    def _make_room(self, size_bytes: int, keep: Collection[Item], what: str) -> None:
        """Make room for all of `keep` and for so many bytes besides."""
        stay = self._fixed_bytes(keep)
        if stay + size_bytes > self.budget.device_bytes:
            needed, allowed = mib_apart(stay + size_bytes, self.budget.device_bytes)
            raise torch.OutOfMemoryError(
                f"{what} needs {mib(size_bytes)} besides {mib(stay)} of weights and states, "
                f"{needed} together, and device_memory allows {allowed}"
            )
        kept = {id(item) for item in keep}
        others = [
            item
            for item in self._items()
            if item.movable and id(item) not in kept and (item.resident or item.arriving)
        ]
        over = stay + size_bytes + sum(i.size_bytes for i in others) - self.budget.device_bytes
        if over <= 0:
            return
        later = self._next_use()
        others.sort(key=lambda item: (-later.get(id(item), _NEVER), item.used))
        for item in others:
            self._move_out(item, later)
            over -= item.size_bytes
            if over <= 0:
                return

    def _move_out(self, item: Item, later: dict[int, int]) -> None:
        if item.arriving is not None:  # it was fetched ahead, and its turn did not come
            item.arriving = None
            return
        tensors = [(ref(), size, stride) for ref, size, stride, _ in item.views]
        alive = [tensor for tensor, _, _ in tensors if tensor is not None]
        if not (item.fixed and item.good):
            self._room_in_host(item.size_bytes, later)
            if item.host is None:
                self._give_host(item)
            assert item.host is not None
            if alive:
                item.host.copy_(_flat(alive[0].untyped_storage()), non_blocking=True)
            item.good = True
        for tensor in alive:
            tensor.data = self._away(tensor)
        item.resident = False
        self.moved.out_bytes += item.size_bytes
        if self._host_bytes > self.budget.host_bytes:
            self._to_disk(item)

    def _bring_in(self, item: Item) -> None:
        storage, event = item.arriving or self._copy_in(item, None)
        if event is not None:
            torch.cuda.current_stream(self.device).wait_event(event)
        for ref, size, stride, offset in item.views:
            tensor = ref()
            if tensor is not None:
                own = torch.empty(0, dtype=tensor.dtype, device=self.device)
                tensor.data = own.set_(storage, offset, size, stride)
        item.arriving, item.resident = None, True
        item.good = item.fixed

    def _copy_in(self, item: Item, stream: Any) -> tuple[torch.UntypedStorage, Any]:
        """A copy of an item on the device; made on a side stream if one is given. Any: CUDA's."""
        if item.host is None:
            self._from_disk(item)
        assert item.host is not None
        storage = torch.UntypedStorage(item.size_bytes, device=self.device)  # type: ignore[no-untyped-call]
        self.moved.in_bytes += item.size_bytes
        if stream is None:
            _flat(storage).copy_(item.host, non_blocking=True)
            return storage, None
        stream.wait_stream(torch.cuda.current_stream(self.device))  # its block was just freed there
        with torch.cuda.stream(stream):
            _flat(storage).copy_(item.host, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(stream)
        return storage, event

    # ---- host and disk ----

    def _give_host(self, item: Item) -> None:
        pinned = self.device.type == "cuda"
        item.host = torch.empty(item.size_bytes, dtype=torch.uint8, pin_memory=pinned)
        self._host_bytes += item.size_bytes

    def _take_host(self, item: Item) -> None:
        if item.host is not None:
            item.host = None
            self._host_bytes -= item.size_bytes

    def _room_in_host(self, size_bytes: int, later: dict[int, int]) -> None:
        """Drop copies of what is on the device, then write what is needed last to the disk."""
        over = self._host_bytes + size_bytes - self.budget.host_bytes
        if over <= 0:
            return
        held = [item for item in self._items() if item.host is not None and item.arriving is None]
        held.sort(key=lambda i: (not i.resident, -later.get(id(i), _NEVER), i.used))
        for item in held:
            if over <= 0:
                return
            if item.resident:
                self._drop_host(item)
            else:
                self._to_disk(item)
            over -= item.size_bytes

    def _to_disk(self, item: Item) -> None:
        assert item.host is not None
        if item.file is None or not item.fixed:
            if item.file is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._files += 1
                item.file = self._folder / f"{self._files}.bin"
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            with item.file.open("wb") as file:
                file.write(item.host.numpy().data)
            self.moved.disk_bytes += item.size_bytes
        self._take_host(item)

    def _from_disk(self, item: Item) -> None:
        assert item.file is not None
        self._room_in_host(item.size_bytes, self._next_use())
        self._give_host(item)
        assert item.host is not None
        with item.file.open("rb") as file:
            read = file.readinto(item.host.numpy().data)
        if read != item.size_bytes:
            raise OSError(f"{item.file} has {read} bytes, not {item.size_bytes}")

    def _drop_host(self, item: Item) -> None:
        self._take_host(item)
        item.good = False
        if item.file is not None:
            item.file.unlink(missing_ok=True)
            item.file = None

    # ---- bookkeeping ----

    def _items(self) -> list[Item]:
        found = {id(item): item for held in self._held.values() for item in held.items}
        return list(found.values())

    def _by_storage(self) -> dict[int, Item]:
        found = {}
        for item in self._items():
            tensor = next((t for ref, *_ in item.views if (t := ref()) is not None), None)
            if item.resident and tensor is not None:
                found[tensor.untyped_storage()._cdata] = item
        return found

    def _add(self, tensor: torch.Tensor, known: dict[int, Item], fixed: bool) -> Item:
        storage = tensor.untyped_storage()
        item = known.get(storage._cdata)
        movable = type(tensor) in _MOVABLE
        if item is None:
            item = known[storage._cdata] = Item([], storage.nbytes(), fixed, movable)
        key = id(tensor)
        ref = weakref.ref(tensor, lambda _: self._of.pop(key, None))
        item.views.append((ref, tensor.size(), tensor.stride(), int(tensor.storage_offset())))
        item.movable = item.movable and movable
        self._of[key] = item
        return item

    def _next_use(self) -> dict[int, int]:
        """For each item, the place in the schedule of the first owner that needs it."""
        places: dict[int, int] = {}
        for place, owner in reversed(list(enumerate(self._ahead))):
            if owner in self._held:
                places.update({id(item): place for item in self._held[owner].items})
        return places

    def _away(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a tensor reads as while it is away: NaN, or the largest integer, over no memory."""
        real = tensor.is_floating_point() or tensor.is_complex()
        number = float("nan") if real else (1 if tensor.dtype is torch.bool else _largest(tensor))
        one = torch.full((), number, dtype=tensor.dtype, device=self.device)
        return one.expand(tensor.size())


class Room:
    """A run's place on a device with a budget. For the run's thread, holding the baton."""

    def __init__(self, residency: Residency, run: int) -> None:
        self._residency, self._run = residency, run
        self._own_bytes = 0

    def build(self, base: Hashable, size_bytes: int) -> None:
        """Make room beside a base for weights that are about to be made."""
        self._residency.make_room(size_bytes, base, f"run {self._run}")

    def take(self, trainer: Any, needs: Footprint) -> None:
        """Take the place of a built trainer. Any: a TRL trainer.

        Raises:
            torch.OutOfMemoryError: It cannot have it, even alone.
        """
        more = needs.gradients + needs.optimizer + needs.activations
        self._residency.settle(self._run, tensors_of(trainer), more)
        self._own_bytes = self._residency.own_bytes(self._run) + more
        self._residency.admit(self._run)

    def share(self, trainer: Any, needs: Footprint) -> float | None:
        """For which share of the activations there is room; None if for all. Any: a TRL trainer."""
        sure = needs.gradients + needs.optimizer
        self._residency.settle(self._run, tensors_of(trainer), sure)
        free = self._residency.free_bytes(self._run) - sure
        return None if free >= needs.activations else max(0.0, free / max(1, needs.activations))

    def park(self, trainer: Any) -> None:
        """Tell what the trainer holds at a boundary: optimizer states may be new."""
        self._residency.settle(self._run, tensors_of(trainer), 0)
        held = self._residency.own_bytes(self._run)
        self._residency.reserve(self._run, max(0, self._own_bytes - held))


def tensors_of(trainer: Any) -> list[torch.Tensor]:
    """All that a trainer holds on its device: weights, gradients, buffers, optimizer state.

    Models that it was given besides its own (a reference, a teacher, rewards) are among them.
    Any: a TRL trainer.
    """
    found: list[torch.Tensor] = []
    for model in companions(trainer):
        for parameter in model.parameters():
            found.append(parameter)
            if parameter.grad is not None:
                found.append(parameter.grad)
        found.extend(model.buffers())
    for state in getattr(trainer.optimizer, "state", {}).values():
        found.extend(value for value in state.values() if isinstance(value, torch.Tensor))
    return found


def _largest(tensor: torch.Tensor) -> int:
    return int(torch.iinfo(tensor.dtype).max)


def _flat(storage: torch.UntypedStorage) -> torch.Tensor:
    """All bytes of a storage, as a tensor over it."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
