"""What MPS needs besides, on a torch that says it has one: its stream, its cache, its limits.

No such device was at hand: that training runs on one is not tested.
"""

import json
from types import SimpleNamespace

import pytest
import torch

from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.training import context, memory, models, requirements


@pytest.fixture
def mps(monkeypatch):
    """A torch with MPS; gives what was done to it."""
    there = SimpleNamespace(stream=torch.arange(8, dtype=torch.uint8), used=10, emptied=0)

    def empty_cache():
        there.emptied += 1

    for owner, name, function in (
        (torch.backends.mps, "is_available", lambda: True),
        (torch.mps, "get_rng_state", lambda: there.stream.clone()),
        (torch.mps, "set_rng_state", lambda state: setattr(there, "stream", state.clone())),
        (torch.mps, "recommended_max_memory", lambda: 100),
        (torch.mps, "driver_allocated_memory", lambda: there.used),
        (torch.mps, "empty_cache", empty_cache),
        (torch.accelerator, "current_accelerator", lambda: torch.device("mps")),
    ):
        monkeypatch.setattr(owner, name, function)
    return there


def test_the_stream_of_the_device_is_swapped_with_the_others(mps):
    before, kept = mps.stream.clone(), context.rng_state()

    mps.stream += 1
    assert context.stream_moved(kept)
    context.set_rng_state(kept)

    assert torch.equal(mps.stream, before) and not context.stream_moved(kept)


def test_a_checkpoint_keeps_the_stream_that_hugging_faces_files_lack(mps):
    before = mps.stream.clone()

    kept = json.loads(json.dumps(context.unsaved_streams()))
    mps.stream += 1
    context.set_unsaved_streams(kept)

    assert torch.equal(mps.stream, before)


def test_its_cache_is_emptied_only_where_memory_is_short(mps):
    memory.ease(ran_out=False)
    assert mps.emptied == 0

    mps.used = 95
    memory.ease(ran_out=False)
    mps.used = 10
    memory.ease(ran_out=True)

    assert mps.emptied == 2


def test_what_needs_a_stream_of_its_own_is_refused(mps):
    with pytest.raises(ConfigError, match="takes activations from a GPU, found mps; use"):
        requirements.check_packages({"activation_offloading": True}, {})


def test_a_base_is_looked_at_without_float64(monkeypatch):
    wide = torch.Tensor.double

    def double(tensor):
        assert tensor.device.type == "cpu", "MPS has no float64"
        return wide(tensor)

    monkeypatch.setattr(torch.Tensor, "double", double)
    layer = torch.nn.Linear(4, 4, device="meta")

    with pytest.raises(NotImplementedError, match=r"[Mm]eta"):  # it is brought to the host first
        models.fingerprint(layer)
