"""A plain page with the panel's front end and a made kernel in it, for tests and screenshots."""

import json
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

HERE = Path(__file__).parent
STATIC = HERE.parents[1] / "rapidfire_jupyter" / "ui" / "static"
CHROMIUM = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def module() -> str:
    """The panel's ES module, put together as the kernel's end does."""
    parts = (STATIC / "PARTS").read_text("utf-8").split()
    return "\n".join((STATIC / part).read_text("utf-8") for part in parts)


def style() -> str:
    return "\n".join(file.read_text("utf-8") for file in sorted(STATIC.glob("*.css")))


def blank(page: Page, *, dark: bool = False, css: str = "") -> None:
    """An empty page that looks like the inside of a notebook, with the made kernel's classes."""
    light = "false" if dark else "true"
    background = "#111" if dark else "#fff"
    page.set_content(
        f'<!doctype html><html lang="en"><head><title>panel</title></head>'
        f'<body data-jp-theme-light="{light}" style="margin:12px;background:{background}">'
        '<main><div id="one"></div><div id="two"></div></main></body></html>'
    )
    page.add_style_tag(content=style() + css)
    page.add_script_tag(content=(HERE / "fake_kernel.js").read_text("utf-8"))
    page.evaluate("source => { window.source = source; }", module())


def show(page: Page, experiment: dict[str, Any] | None = None, *, dark: bool = False) -> None:
    """Open a panel on a made experiment (see `FakeKernel`); it is `window.kernel` then."""
    blank(page, dark=dark)
    page.evaluate(
        """async (experiment) => {
          window.kernel = new FakeKernel(experiment);
          window.panel = await mount(kernel, source, document.getElementById("one"));
        }""",
        experiment or {},
    )
    page.wait_for_function("document.querySelector('.rf-grid tbody tr, .rf-waiting, .rf-still')")


def parts(page: Page) -> None:
    """The panel's parts as plain scripts, so that their pure functions can be called by name."""
    page.set_content("<!doctype html><title>parts</title><body></body>")
    for name in (STATIC / "PARTS").read_text("utf-8").split()[:-1]:
        page.add_script_tag(content=(STATIC / name).read_text("utf-8"))
    page.add_script_tag(content=(HERE / "fake_kernel.js").read_text("utf-8"))


def sent(page: Page, kind: str) -> list[dict[str, Any]]:
    """Messages of a type that the views have sent so far."""
    found: list[dict[str, Any]] = json.loads(
        page.evaluate(
            "kind => JSON.stringify(kernel.model.sent.filter(m => m.type === kind))", kind
        )
    )
    return found
