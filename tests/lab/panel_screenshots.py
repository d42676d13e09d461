"""Pictures of the panel and of the clone form for the README, from a real training.

python tests/lab/panel_screenshots.py docs/images
"""

import sys
import tempfile
from pathlib import Path

from browser import chromium, command, jupyterlab, open_lab, open_notebook, run_all

FIT = """
%load_ext rapidfire_jupyter
import tiny
from rapidfire_jupyter import Experiment, List, RFGridSearch, RFModelConfig
from rapidfire_jupyter import RFLoraConfig, RFSFTConfig
from rapidfire_jupyter.waiting import until

config = RFModelConfig(
    "tiny",
    peft_config=List([RFLoraConfig(r=4, target_modules=["q_proj", "v_proj"]),
                      RFLoraConfig(r=16, target_modules="all-linear")]),
    training_args=RFSFTConfig(
        learning_rate=List([3e-2, 1e-2, 3e-3]), per_device_train_batch_size=4,
        num_train_epochs=12, logging_steps=1,
    ),
)
exp = Experiment("support-bot")
exp.run_fit(RFGridSearch(config, trainer_type="SFT"), tiny.create_model, tiny.sft_rows(48),
            eval_dataset=tiny.sft_rows(8), num_chunks=4)
"""
STEER = """
until(exp, lambda: min(r.step for r in exp.state.runs.values()) > 30, 300)
exp.stop(3).wait(30)
exp.boost(4, 2).wait(30)
exp.clone(4, {"learning_rate": 2e-2}, warm=True).wait(30)
until(exp, lambda: exp.state.runs[7].step > 55, 300)
exp.pause_all().wait(30)
None
"""


def main(folder: Path) -> None:
    """Take all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as root, jupyterlab(Path(root)) as lab, chromium() as chrome:
        page = open_lab(chrome, lab, width=1480, height=1100)
        page.set_default_timeout(300_000)
        open_notebook(page, lab, "support-bot.ipynb", [FIT, STEER])
        command(page, "application:toggle-left-area")
        run_all(page)
        panel = page.locator(".rf-panel").first
        panel.scroll_into_view_if_needed()
        page.locator("tr[data-run='7']").wait_for()
        page.get_by_label("Smoothing").fill("0.6")
        page.evaluate("() => document.activeElement.blur()")
        for theme in ("Light", "Dark"):
            command(page, "apputils:change-theme", theme=f"JupyterLab {theme}")
            page.wait_for_selector(f".rf-panel[data-dark={'true' if theme == 'Dark' else 'false'}]")
            page.locator("#jupyterlab-splash").wait_for(state="detached")
            page.wait_for_timeout(2000)  # the curves are drawn again once the theme is loaded
            panel.screenshot(path=folder / f"panel-{theme.lower()}.png")
        command(page, "apputils:change-theme", theme="JupyterLab Light")
        page.wait_for_selector(".rf-panel[data-dark=false]")
        page.locator("tr[data-run='4'] [data-op=clone]").click()
        page.get_by_role("textbox", name="learning_rate", exact=True).fill("5e-3, 2e-2")
        page.locator(".rf-primary:not([aria-disabled])").wait_for()
        page.locator(".rf-preview .rf-plot").wait_for()
        page.locator("#jupyterlab-splash").wait_for(state="detached")
        page.wait_for_timeout(2000)
        page.locator(".rf-form").screenshot(path=folder / "clone-form.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
