"""The static twin in a real JupyterLab: hidden by the live view, there without a kernel."""

import pytest
from browser import command, ready
from test_panel_page import finished, start

pytestmark = pytest.mark.slow

TWINS = """() => [...document.querySelectorAll("[class^='rapidfire-twin-']")].map((twin) => ({
    text: twin.textContent, svg: twin.querySelectorAll("svg").length,
    height: twin.closest(".jp-OutputArea-child").getBoundingClientRect().height,
}))"""


def test_the_twin_is_seen_only_where_no_live_view_is(page, lab, name):
    start(page, lab, name, epochs=2)
    finished(page)
    page.wait_for_function(f"() => ({TWINS})()[0].text.includes('2 completed')")
    (beside,) = page.evaluate(TWINS)
    command(page, "docmanager:save")
    page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")

    for session in lab.get("api/sessions"):
        lab.delete(f"api/sessions/{session['id']}")
    page.reload()
    ready(page)
    page.wait_for_function(f"() => ({TWINS})().some((twin) => twin.height > 100)")
    (alone,) = page.evaluate(TWINS)

    assert beside["height"] == 0
    assert name in alone["text"] and "2 completed" in alone["text"] and alone["svg"] == 2
