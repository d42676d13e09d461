"""The panel in a real JupyterLab, on a real training: live, clicked, reloaded, flooded."""

import pytest
from browser import ask_kernel, command, open_notebook, ready, run_all
from test_extension import TRAIN

pytestmark = pytest.mark.slow

FIT = """
exp = Experiment("{name}")
exp.run_fit(
    grid([1e-2, 1e-3], {epochs}), tiny.create_model, tiny.sft_rows(16),
    eval_dataset=tiny.sft_rows(4), num_chunks=4,
)
"""
ROWS = "[int(exp.run(i).history['loss'].notna().sum()) for i in (1, 2)]"
POINTS = """() => [...document.querySelectorAll(".rf-curves tbody tr")]
    .map((row) => Number(row.children[1].textContent))"""


def start(page, lab, name, *cells, epochs=200, wait=True):
    """A notebook with a panel under its second cell, and the cells given after it."""
    fit = FIT.format(name=name, epochs=epochs)
    open_notebook(page, lab, f"{name}.ipynb", [TRAIN, fit, *cells])
    if wait:
        run_all(page)
    else:
        page.evaluate("() => void window.jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_selector(".rf-panel tr[data-run='2']")
    page.locator(".rf-grid").first.scroll_into_view_if_needed()  # out of sight it is not drawn


def numbers(page):
    """Show the numbers behind the chart instead of the picture."""
    toggle = page.get_by_role("button", name="Numbers").first
    if toggle.get_attribute("aria-pressed") == "false":
        toggle.click()


def points(page):
    return page.evaluate(POINTS)


def finished(page):
    """Wait until training has ended and the panel says so."""
    page.wait_for_function(
        "() => [...document.querySelectorAll('.rf-panel tbody [data-status]')]"
        ".filter(one => one.dataset.status === 'completed').length === 2"
    )


def test_a_click_is_answered_while_a_cell_blocks(page, lab, name):
    page.set_viewport_size({"width": 1700, "height": 900})  # wide enough for buttons in the rows
    start(page, lab, name, "import time\ntime.sleep(15)\ndone = True", wait=False)
    page.wait_for_function(
        "() => document.querySelectorAll('.jp-InputPrompt')[2].innerText == '[*]:'"
    )

    page.locator("tr[data-run='1'] [data-op=stop]").click()
    page.wait_for_selector(".rf-notices:has-text('Stop run 1 applied')", timeout=10_000)

    prompt = page.locator(".jp-InputPrompt").nth(2).inner_text()
    assert prompt == "[*]:"  # the cell still blocks
    assert page.locator("tr[data-run='1'] [data-status]").first.get_attribute("data-status")


def test_ten_reloads_bring_back_every_point(page, lab, name):
    start(page, lab, name, epochs=4)
    finished(page)
    command(page, "docmanager:save")
    page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")
    logged = ask_kernel(page, ROWS)

    for _ in range(10):
        page.reload()
        ready(page)
        page.wait_for_selector(".rf-panel tr[data-run='2']", timeout=15_000)
        page.locator(".rf-grid").first.scroll_into_view_if_needed()
        numbers(page)
        page.wait_for_function(f"() => String(({POINTS})()) === '{','.join(map(str, logged))}'")


def test_two_views_agree(page, lab, name):
    start(page, lab, name, "exp.panel()", epochs=4)
    page.wait_for_function("() => document.querySelectorAll('.rf-panel').length === 2")
    finished_in_both = (
        "() => [...document.querySelectorAll('.rf-panel tbody [data-status=completed]')]"
        ".length === 4"
    )
    page.wait_for_function(finished_in_both)

    tables = page.locator(".rf-grid tbody").all_inner_texts()
    assert tables[0] == tables[1]


def test_after_a_flood_of_prints_the_curves_equal_the_log(page, lab, name):
    flood = (
        "import sys\n"
        "end = time.time() + 8\n"
        "while time.time() < end:\n"
        "    sys.stdout.write('x' * 100_000 + '\\n'); sys.stdout.flush(); time.sleep(0.02)\n"
        "from IPython.display import clear_output; clear_output()"
    )
    start(page, lab, name, flood, "exp.stop(1); exp.stop(2)", wait=True)
    numbers(page)
    page.wait_for_function(
        "() => [...document.querySelectorAll('.rf-panel tbody [data-status=stopped]')].length === 2"
    )
    logged = ask_kernel(page, ROWS)

    page.wait_for_function(
        f"() => String(({POINTS})()) === '{','.join(map(str, logged))}'", timeout=5_000
    )


def test_markup_in_an_experiments_name_is_shown_as_text(page, lab, name):
    cell = (
        "evil = Experiment('<img src=x onerror=globalThis.hit=1>')\n"
        "evil.run_fit(grid([1e-2], 2), tiny.create_model, tiny.sft_rows(16), num_chunks=2)"
    )
    open_notebook(page, lab, "evil.ipynb", [TRAIN, cell])
    run_all(page)
    page.wait_for_selector(".rf-panel .rf-name:has-text('<img src=x')")

    assert page.locator(".rf-panel img").count() == 0
    assert page.evaluate("globalThis.hit") is None
