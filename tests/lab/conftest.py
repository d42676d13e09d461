"""One server and one Chromium for all browser tests of a worker."""

import itertools
import re

import pytest
from browser import chromium, jupyterlab, open_lab

_tries = itertools.count(1)


@pytest.fixture
def name(request):
    """A name for a notebook and its experiment: a second try must not go on with the first's."""
    return re.sub(r"\W+", "-", request.node.name)[:60] + f"-{next(_tries)}"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with jupyterlab(tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture(scope="module")
def chrome():
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(chrome, lab):
    """A fresh page of JupyterLab; every kernel is shut down after the test."""
    opened = open_lab(chrome, lab)
    yield opened
    opened.context.close()
    for session in lab.get("api/sessions"):
        lab.delete(f"api/sessions/{session['id']}")


def pytest_collection_modifyitems(items):
    """A server, kernels and a browser share two cores: what times out once is tried again."""
    for item in items:
        if "tests/lab/" in item.path.as_posix():
            item.add_marker(pytest.mark.flaky(reruns=2))
