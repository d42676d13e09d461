"""The review of rows in a real JupyterLab: clicked, typed, hostile rows, light and dark."""

import os
from pathlib import Path

import pytest
from browser import ask_kernel, command, open_notebook, run_all

pytestmark = pytest.mark.slow

EVIL = '<img src=x onerror="window.broken=1"><script>window.broken=1</script>'
REVIEW = f"""
from rapidfire_jupyter import review

def row(question, answer, **more):
    turns = ("system", "You help with orders."), ("user", question), ("assistant", answer)
    return {{"messages": [{{"role": r, "content": t}} for r, t in turns], "task": "orders", **more}}

rows = [row(f"Where is order {{n}}?\\n\\nI have waited a week.",
            f"In house {{n}}. " + "It comes soon. " * 9) for n in range(9)]
rows.append(row({EVIL!r}, {EVIL!r}, **{{{EVIL!r}: {EVIL!r}}}))
reviewed = review(rows, n=100, experiment="reviewed")
reviewed
"""
PRESSED = "() => document.querySelector('.rf-review strong').textContent === {!r}"


def said(page, text):
    """Wait until the review tells its progress so."""
    page.wait_for_function(PRESSED.format(text))


def picture(page, name):
    """A picture for who looks at the pictures of these tests."""
    folder = os.environ.get("RAPIDFIRE_PICTURES")
    if folder:
        page.locator(".rf-review").screenshot(path=Path(folder) / f"review-{name}.png")


def test_rows_are_reviewed_by_mouse_and_keyboard(page, lab):
    open_notebook(page, lab, "review.ipynb", [REVIEW, "2", "3"])
    command(page, "application:toggle-left-area")
    run_all(page)
    root = page.locator(".rf-review")
    root.wait_for()
    said(page, "0 of 10, 0 dropped")

    root.get_by_role("button", name="Keep").click()
    said(page, "1 of 10, 0 dropped")
    root.get_by_label("Note").fill("too old")
    root.get_by_role("button", name="Drop").click()
    said(page, "2 of 10, 1 dropped")
    root.locator(".rf-rowtext").click()
    page.keyboard.press("d")
    said(page, "3 of 10, 2 dropped")
    page.keyboard.press("d")  # twice this key deletes a cell, elsewhere
    said(page, "4 of 10, 3 dropped")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("[data-verdict='drop']")
    picture(page, "light")
    page.keyboard.press("u")
    said(page, "3 of 10, 2 dropped")
    page.keyboard.press("n")
    page.keyboard.type("keep d")
    page.keyboard.press("Enter")
    page.keyboard.press("k")
    said(page, "4 of 10, 2 dropped")

    assert page.locator(".jp-Notebook .jp-Cell").count() == 3
    told = ask_kernel(page, "reviewed.decisions().values.tolist()")
    assert [row[1:] for row in told] == [
        ["keep", ""], ["drop", "too old"], ["drop", ""], ["keep", "keep d"],
    ]  # fmt: skip

    ask_kernel(page, "reviewed.keep()")  # by a cell: the view follows
    said(page, "5 of 10, 2 dropped")
    command(page, "apputils:change-theme", theme="JupyterLab Dark")
    page.wait_for_selector(".rf-review[data-dark=true]")
    page.wait_for_timeout(1000)
    picture(page, "dark")


def test_markup_in_rows_is_shown_as_text(page, lab):
    open_notebook(page, lab, "evil.ipynb", [REVIEW + "\nreviewed.go(10)\nreviewed"])
    run_all(page)
    root = page.locator(".rf-review").first
    root.wait_for()

    assert root.inner_text().count(EVIL) == 4
    assert root.locator("img, script").count() == 0
    assert page.evaluate("() => window.broken") is None
