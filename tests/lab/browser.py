"""A real JupyterLab in a real Chromium, for tests of what people see and click.

    with jupyterlab(folder) as lab, chromium() as browser:
        page = open_lab(browser, lab)
        open_notebook(page, lab, "a.ipynb", ["print(1)"])
        run_all(page)

The server has a port, a token, settings and a runtime folder of its own; news, update checks and
announcements are off. The page's application is at `window.jupyterapp`.
"""

import ast
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest

TESTS = Path(__file__).parents[1]
START_S = 120
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@dataclass(frozen=True)
class Lab:
    """A running server; `folder` is its root."""

    url: str
    token: str
    folder: Path
    settings: Path

    def set(self, plugin: str, **values: Any) -> None:
        """Write a plugin's user settings; pages that are opened later have them. Any: JSON."""
        package, _, name = plugin.rpartition(":")
        file = self.settings / package / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values), encoding="utf-8")

    def get(self, path: str) -> Any:
        """What the server's REST interface answers. Any: JSON."""
        with self._request("GET", path) as answer:
            return json.load(answer)

    def delete(self, path: str) -> None:
        """Delete what the server's REST interface has there."""
        self._request("DELETE", path).close()

    def _request(self, method: str, path: str) -> Any:  # Any: an HTTP response
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}{path}", headers=headers, method=method)
        return urllib.request.urlopen(request, timeout=30)


@contextlib.contextmanager
def jupyterlab(folder: Path) -> Iterator[Lab]:
    """Start a server on a free port, with `folder` as root; it ends with the block."""
    token = "test-token"
    with tempfile.TemporaryDirectory() as private:
        own = Path(private)
        port = _free_port()
        lab = Lab(f"http://127.0.0.1:{port}/", token, folder, own / "settings")
        lab.set(
            "@jupyterlab/apputils-extension:notification",
            checkForUpdates=False,
            fetchNews="false",
        )
        environment = {
            **os.environ,
            "JUPYTER_CONFIG_DIR": str(own / "config"),
            "JUPYTER_RUNTIME_DIR": str(own / "runtime"),
            "JUPYTERLAB_SETTINGS_DIR": str(lab.settings),
            "JUPYTERLAB_WORKSPACES_DIR": str(own / "workspaces"),
            "IPYTHONDIR": str(own / "ipython"),
            "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "1",
        }
        command = [
            sys.executable,
            "-m",
            "jupyterlab",
            "--no-browser",
            "--allow-root",
            "--ServerApp.ip=127.0.0.1",
            f"--ServerApp.port={port}",
            "--ServerApp.port_retries=0",
            f"--ServerApp.root_dir={folder}",
            "--ServerApp.terminals_enabled=False",
            f"--IdentityProvider.token={token}",
            "--LabApp.expose_app_in_browser=True",
            "--LabApp.news_url=",
        ]
        with (own / "server.log").open("w") as log:
            server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            _wait_for_server(server, lab, own / "server.log")
            yield lab
        finally:
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_server(server: subprocess.Popen[bytes], lab: Lab, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            lab.get("api/status")
            return
        except OSError:
            time.sleep(0.2)  # there is nothing to wait on but the port
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Start Chromium; skips the test if there is none. Any: a playwright Browser."""
    sync_api = pytest.importorskip("playwright.sync_api")
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("needs Chromium: apt-get install --no-install-recommends chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, headless=True, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def open_lab(browser: Any, lab: Lab, width: int = 1280, height: int = 800) -> Any:
    """A new page with JupyterLab; its console errors are in `page.errors`. Any: playwright's."""
    context = browser.new_context(viewport={"width": width, "height": height})
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda said: said.type == "error" and page.errors.append(said.text))
    page.goto(f"{lab.url}lab?token={lab.token}&reset")
    ready(page)
    return page


def ready(page: Any) -> None:
    """Wait until JupyterLab has started, also after a reload."""
    page.wait_for_function("() => window.jupyterapp?.restored", timeout=120_000)
    page.evaluate("() => window.jupyterapp.restored.then(() => true)")


def open_notebook(page: Any, lab: Lab, name: str, cells: list[str]) -> None:
    """Write a notebook, open it, and wait for its kernel."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
        },
    )
    nbformat.write(notebook, lab.folder / name)
    page.evaluate(
        """async path => {
          const widget = await window.jupyterapp.commands.execute('docmanager:open', {path});
          await widget.context.ready;
          await widget.sessionContext.ready;
          window.jupyterapp.shell.activateById(widget.id);
        }""",
        name,
    )
    page.wait_for_function(
        "path => window.jupyterapp.shell.currentWidget?.context?.path === path", arg=name
    )
    kernel_ready(page)


def kernel_ready(page: Any) -> None:
    """Wait for the kernel of the document in front."""
    page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel"
        "?.status === 'idle'"
    )


def command(page: Any, name: str, **arguments: Any) -> None:
    """Start a command, without waiting for it: some wait for a dialog."""
    page.evaluate(
        "([name, args]) => void window.jupyterapp.commands.execute(name, args)", [name, arguments]
    )


def run_all(page: Any) -> None:
    """Run all cells of the notebook in front, and wait for them."""
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")


def ask_kernel(page: Any, expression: str) -> Any:
    """What an expression gives in the kernel of the notebook in front, by way of JSON."""
    answer = page.evaluate(
        """async code => {
          const panel = [...window.jupyterapp.shell.widgets('main')]
            .find(widget => widget.sessionContext?.session?.kernel);
          const kernel = panel.sessionContext.session.kernel;
          const future = kernel.requestExecute({
            code: '', silent: true, store_history: false,
            user_expressions: {value: `__import__("json").dumps(${code})`}
          });
          const reply = await future.done;
          const value = reply.content.user_expressions.value;
          return value.data ? value.data['text/plain'] : JSON.stringify(value);
        }""",
        expression,
    )
    assert answer.startswith("'"), answer
    return json.loads(ast.literal_eval(answer))
