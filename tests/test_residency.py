"""A small device: tensors move away and back bit for bit, and reading what is away cannot pass."""

import gc

import psutil
import pytest
import torch
from torch import nn

from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.training.budget import Budget, budget, mib_apart
from rapidfire_jupyter.training.residency import Residency

KIB = 1024


def manager(folder, device_kib, host_kib=1 << 20):
    return Residency(torch.device("cpu"), Budget(device_kib * KIB, host_kib * KIB), folder)


def weights(kib, seed):
    """A linear layer of so many KiB in all."""
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Linear(16, kib * 16, bias=False)
    layer.weight.data = torch.randn(kib * 16, 16, generator=generator)
    return layer


def test_what_is_away_reads_as_nan_and_comes_back_bit_for_bit(tmp_path):
    small = manager(tmp_path, 5)
    one, two = weights(4, 1), weights(4, 2)
    before = one.weight.detach().clone()
    parameter, version = one.weight, one.weight._version
    small.settle("one", [one.weight], 0)

    small.make_room(4 * KIB, "two", "two")
    away = parameter.untyped_storage().nbytes()
    read = one(torch.ones(1, 16))
    small.settle("two", [two.weight], 0)
    small.admit("one")

    assert away == 4 and read.isnan().all()  # one NaN stands for all of it
    assert one.weight is parameter and parameter._version == version
    assert torch.equal(parameter, before)
    assert not small.is_resident("two") and two.weight.isnan().all()
    assert small.used_bytes() == 4 * KIB


def test_optimizer_states_move_under_the_same_objects_and_training_goes_on_the_same(tmp_path):
    def train(between):
        torch.manual_seed(0)
        layer = weights(2, 3)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
        for step in range(4):
            layer(torch.randn(3, 16)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            between(step, layer, optimizer)
        return layer, optimizer

    plain, plain_optimizer = train(lambda *_: None)
    small = manager(tmp_path, 8)

    def away_and_back(step, layer, optimizer):
        state = optimizer.state[layer.weight]
        small.settle(1, [layer.weight, *state.values()], 0)
        small.make_room(8 * KIB, "other", "other")
        assert state["exp_avg"].isnan().all() and not state["step"].isnan()
        small.admit(1)

    moved, optimizer = train(away_and_back)

    assert torch.equal(moved.weight, plain.weight)
    for name, value in optimizer.state[moved.weight].items():
        assert torch.equal(value, plain_optimizer.state[plain.weight][name])
    assert small.moved.in_bytes == small.moved.out_bytes == 4 * 6 * KIB


def test_tied_weights_and_views_count_once_and_stay_tied(tmp_path):
    small = manager(tmp_path, 8)
    layer = weights(4, 1)
    tied = nn.Parameter(layer.weight.detach(), requires_grad=False)
    rows = layer.weight.detach()[2:4].t()
    small.settle("base", [layer.weight, layer.weight, tied, rows], 0, fixed=True)
    assert small.used_bytes() == 4 * KIB
    expected = rows.clone()

    small.make_room(8 * KIB, "other", "other")
    assert rows.isnan().all() and tied.isnan().all()
    small.admit("base")
    layer.weight.data[2:4] += 1

    assert torch.equal(rows, expected + 1)
    assert tied.data_ptr() == layer.weight.data_ptr()


def test_frozen_weights_are_copied_to_the_host_once(tmp_path):
    small = manager(tmp_path, 5)
    layer = weights(4, 1)
    small.settle("base", [layer.weight], 0, fixed=True)

    for _ in range(3):
        small.make_room(4 * KIB, "other", "other")
        host = small._held["base"].items[0].host
        small.admit("base")
        assert small._held["base"].items[0].host is host and host is not None


def test_beyond_the_budget_it_refuses_with_numbers(tmp_path):
    small = manager(tmp_path, 6)
    base, run = weights(4, 1), weights(1, 2)
    small.settle("base-1", [base.weight], 0, fixed=True)
    small.settle(1, [base.weight, run.weight], 2 * KIB)

    with pytest.raises(torch.OutOfMemoryError, match=r"1 needs 0.0 MiB besides 0.0 MiB"):
        small.admit(1)
    assert small.is_resident(1)
    small.settle(1, [base.weight, run.weight], 1 * KIB)
    small.admit(1)


def test_by_the_schedule_what_is_needed_last_goes_first(tmp_path):
    small = manager(tmp_path, 3)
    layers = {n: weights(1, n) for n in (1, 2, 3)}
    for n, layer in layers.items():
        small.settle(n, [layer.weight], 0)
    small.admit(1)  # used last, but its turn comes next

    small.expect([1, 2, 3])
    small.make_room(1 * KIB, "other", "other")
    assert [small.is_resident(n) for n in (1, 2, 3)] == [True, True, False]
    small.expect([2, 3])
    small.make_room(2 * KIB, "other", "other")
    assert [small.is_resident(n) for n in (1, 2, 3)] == [False, True, False]


def test_the_next_run_is_fetched_ahead_where_there_is_room_for_both(tmp_path):
    small = manager(tmp_path, 2)
    layers = {n: weights(1, n) for n in (1, 2, 3)}
    content = {n: layer.weight.detach().clone() for n, layer in layers.items()}
    for n, layer in layers.items():
        small.expect([1, 2, 3])
        small.make_room(1 * KIB, n, "")
        small.settle(n, [layer.weight], 0)

    small.expect([1, 2, 3])
    small.admit(1)
    small.prefetch(1, 2)
    assert small.used_bytes() == 2 * KIB and layers[2].weight.isnan().all()
    before = small.moved.in_bytes
    small.admit(2)

    assert small.moved.in_bytes == before  # it was there already
    assert torch.equal(layers[2].weight, content[2])
    small.settle(1, [layers[1].weight], 1 * KIB)  # the run that trains needs that room itself
    small.admit(1)
    small.prefetch(1, 3)
    assert layers[3].weight.isnan().all() and small.used_bytes() == 1 * KIB
    small.admit(3)
    assert torch.equal(layers[3].weight, content[3])


def test_beyond_the_host_budget_it_goes_to_disk_and_back(tmp_path):
    small = manager(tmp_path / "offload", 2, 2)
    layers = {n: weights(1, n) for n in range(6)}
    content = {n: layer.weight.detach().clone() for n, layer in layers.items()}
    for n, layer in layers.items():
        small.make_room(1 * KIB, n, "")
        small.settle(n, [layer.weight], 0)

    for _ in range(2):
        for n, layer in layers.items():
            small.admit(n)
            assert torch.equal(layer.weight, content[n])
            layer.weight.data += 1  # as training does
            content[n] += 1
            assert small.used_bytes() <= 2 * KIB and small.host_bytes() <= 2 * KIB
    assert small.moved.disk_bytes > 0
    for n in layers:
        small.forget(n)
    assert list((tmp_path / "offload").iterdir()) == []


def test_without_room_in_host_memory_all_of_it_goes_to_disk(tmp_path):
    small = manager(tmp_path / "offload", 1, 0)
    one, two = weights(1, 1), weights(1, 2)
    content = one.weight.detach().clone()
    small.settle(1, [one.weight], 0)
    small.make_room(1 * KIB, 2, "")
    small.settle(2, [two.weight], 0)
    assert small.host_bytes() == 0

    small.admit(1)

    assert torch.equal(one.weight, content) and not small.is_resident(2)


def test_what_nobody_holds_any_more_is_forgotten(tmp_path):
    small = manager(tmp_path, 8)
    base, layer = weights(1, 1), weights(1, 2)
    small.settle("base", [base.weight], 0, fixed=True)
    small.settle(1, [base.weight, layer.weight], 0)
    small.settle(2, [base.weight], 0)
    small.make_room(8 * KIB, "other", "other")

    small.forget(1)
    del layer
    gc.collect()

    assert small.host_bytes() == 1 * KIB and len(small._of) == 1
    small.admit(2)
    assert not base.weight.isnan().any()


def test_quantised_weights_are_counted_and_stay_where_they_are(tmp_path):
    class Packed(nn.Parameter):
        """Like bitsandbytes' parameters: a subclass with a state of its own."""

    small = manager(tmp_path, 4)
    packed = Packed(torch.ones(256), requires_grad=False)
    small.settle("base", [packed], 0, fixed=True)

    with pytest.raises(torch.OutOfMemoryError):
        small.make_room(4 * KIB, "other", "a run")
    assert small.used_bytes() == 1 * KIB and bool((packed == 1).all())


@pytest.mark.parametrize(
    ("given", "bytes_"),
    [
        (4096, 4096),
        ("20 GB", 20_000_000_000),
        ("1.5GiB", 1_610_612_736),
        ("512 MiB", 1 << 29),
        (1e9, 10**9),
        ("1e3 MB", 10**9),
    ],
)
def test_a_budget_may_be_bytes_or_a_size(given, bytes_):
    assert budget(given, 0, torch.device("cpu")) == Budget(bytes_, 0)


def test_a_budget_may_be_a_share_and_on_a_cpu_all_else_is_on_disk():
    whole = psutil.virtual_memory().total

    half = budget("50%", None, torch.device("cpu"))

    assert half == Budget(whole // 2, 0)


@pytest.mark.parametrize("given", ["much", "120%", -1, 0, True, 1.5, "5 parsecs"])
def test_a_budget_that_is_none_is_refused(given):
    with pytest.raises(ConfigError, match=r'device_memory must be .*"80%".*"20 GB"'):
        budget(given, 0, torch.device("cpu"))


def test_sizes_that_differ_are_told_as_different_ones():
    assert mib_apart(3 * 2**20 + 1, 3 * 2**20) == ("3.1 MiB", "3.0 MiB")
    assert mib_apart(3.12 * 2**20, 2.99 * 2**20) == ("3.1 MiB", "3.0 MiB")
    assert mib_apart(5000 * 2**20, 2**20) == ("5,000.0 MiB", "1.0 MiB")
