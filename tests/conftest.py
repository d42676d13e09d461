"""Shared set-up of all tests: offline, one thread, an experiment folder for each test."""

import importlib.util
import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")

import pytest

# They train, open a kernel or a browser: too long for `make test-fast`.
TRAINING = {
    "attributes",
    "changed_bases",
    "checkpoints",
    "deciding",
    "eight_bit",
    "exactness",
    "experiment",
    "faults",
    "findings",
    "formatting",
    "generating",
    "generation",
    "gpu_check",
    "isolation",
    "kernel",
    "magics",
    "mixed",
    "models",
    "multitask",
    "notebooks",
    "observing",
    "offload",
    "ops",
    "panel",
    "panel_kernel",
    "peft_methods",
    "questions",
    "rdrop",
    "recovery",
    "references",
    "rehearsals",
    "relief",
    "residency",
    "rewards",
    "row_losses",
    "script",
    "settings",
    "storm",
    "streams",
    "suggestions",
    "token_budget",
    "trainers",
}


def pytest_collection_modifyitems(items):
    for item in items:
        name = item.path.stem.removeprefix("test_")
        if name in TRAINING or "tests/ui/" in item.path.as_posix():
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def one_thread():
    """Sums on one thread are the same in every process."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def no_bitsandbytes(monkeypatch):
    """As where the extra qlora is not installed."""
    real = importlib.util.find_spec

    def find_spec(name, *given):
        return None if name == "bitsandbytes" else real(name, *given)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


@pytest.fixture
def same_bits():
    """Skip where this machine's matrix products of a row depend on how many stand beside it."""
    import torch

    drawn = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        rows = torch.randn(4, 32, generator=drawn).to(dtype)
        weight = torch.randn(32, 32, generator=drawn).to(dtype)
        alone = torch.nn.functional.linear(rows, weight)
        if not torch.equal(torch.nn.functional.linear(rows.repeat(4, 1), weight)[:4], alone):
            pytest.skip("rows depend on how many there are: runs answer alone here")


@pytest.fixture
def experiment(tmp_path):
    """Make experiments in this test's folder; all are ended afterwards."""
    from rapidfire_jupyter import Experiment

    made = []

    def make(name="exp"):
        exp = Experiment(name, root=tmp_path)
        made.append(exp)
        return exp

    yield make
    for exp in made:
        exp.end()
