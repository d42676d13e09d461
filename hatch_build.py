"""Ships the labextension in the wheel; built here first if it is not there and npm is.

Without the labextension everything but the sidebar, the status bar and the guard works, so its
absence never fails an installation.
"""

import shutil
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TARGET = "share/jupyter/labextensions/rapidfire-jupyter"


class LabextensionHook(BuildHookInterface):
    """Adds `labextension/built` to what a wheel installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before each build. Any: hatchling's own data."""
        folder = Path(self.root, "labextension")
        if not (folder / "built" / "package.json").exists():
            self._build(folder)
        if (folder / "built" / "package.json").exists() and self.target_name == "wheel":
            build_data["shared_data"][str(folder / "built")] = TARGET

    def _build(self, folder: Path) -> None:
        if shutil.which("node") is None:
            self.app.display_warning("no node: the JupyterLab sidebar and guard are left out")
            return
        from hatch_jupyter_builder import npm_builder

        try:
            npm_builder(
                self.target_name, "standard", path=folder, build_cmd="build:prod", npm=["jlpm"]
            )
        except Exception as error:  # whatever npm does, the package itself can be installed
            self.app.display_warning(
                f"the JupyterLab sidebar and guard are left out: building them failed ({error})"
            )
