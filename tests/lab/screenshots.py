"""Pictures of sidebar, status bar and guard for the README, from a real training.

python tests/lab/screenshots.py docs/images
"""

import sys
import tempfile
from pathlib import Path

from browser import chromium, command, jupyterlab, open_lab, open_notebook, run_all
from test_extension import TRAIN

WIDTH, HEIGHT = 1280, 720
FIT = """
exp = Experiment("support-bot")
exp.run_fit(
    grid([1e-2, 3e-3, 1e-3, 3e-4], 12), tiny.create_model, tiny.sft_rows(16),
    eval_dataset=tiny.sft_rows(4), num_chunks=4, slice_steps=4,
)
until(exp, lambda: sum(r.step for r in exp.state.runs.values()) > 120, 120)
exp.stop(4).wait(30)
exp.boost(1, 2).wait(30)
None
"""


def main(folder: Path) -> None:
    """Take all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as root, jupyterlab(Path(root)) as lab, chromium() as chrome:
        page = open_lab(chrome, lab, width=WIDTH, height=HEIGHT)
        open_notebook(page, lab, "support-bot.ipynb", [TRAIN, FIT])
        command(page, "rapidfire:show-runs")
        run_all(page)
        page.locator(".rf-Run.rf-mod-stopped").wait_for()
        page.locator(".rf-Sidebar").get_by_role("button", name="Open panel").click()
        page.locator(".rf-Panel .rf-panel tr[data-run='4']").wait_for()
        for theme in ("Light", "Dark"):
            command(page, "apputils:change-theme", theme=f"JupyterLab {theme}")
            body = f"body[data-jp-theme-name='JupyterLab {theme}']"
            page.wait_for_selector(body, state="attached")
            page.locator("#jupyterlab-splash").wait_for(state="detached")
            page.screenshot(path=folder / f"sidebar-{theme.lower()}.png")
        command(page, "notebook:restart-kernel")
        page.locator(".rf-Guard").wait_for()
        page.locator(".jp-Dialog-content").screenshot(path=folder / "guard.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
