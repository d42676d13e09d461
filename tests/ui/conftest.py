"""A Chromium for the panel's tests; they are left out where there is none, or no Playwright."""

import importlib.util
import shutil

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("playwright") else ["test_*.py"]


@pytest.fixture(scope="module")  # a second Playwright in a process needs the first ended
def chrome():
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("the panel's tests need Chromium: apt-get install chromium")
    from front_page import CHROMIUM
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def page(chrome):
    """A page of its own; an error in it fails the test."""
    context = chrome.new_context(viewport={"width": 1100, "height": 900})
    opened = context.new_page()
    errors = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    context.close()
    assert not errors
