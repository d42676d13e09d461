"""The labextension in packages: versions, a build of the present sources, what a wheel holds."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rapidfire_jupyter import __version__, doctor

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "labextension"
INSTALLED = "data/share/jupyter/labextensions/rapidfire-jupyter/"

pytestmark = pytest.mark.skipif(not SOURCE.exists(), reason="needs the source tree")


def test_versions_are_the_packages():
    given = json.loads((SOURCE / "package.json").read_text(encoding="utf-8"))
    built = json.loads((SOURCE / "built" / "package.json").read_text(encoding="utf-8"))

    assert (given["name"], built["name"]) == ("rapidfire-jupyter", "rapidfire-jupyter")
    assert given["version"] == built["version"] == __version__


def test_the_build_was_made_from_the_present_sources():
    """As `labextension/stamp.mjs` computes it."""
    folders = ("src", "style", "schema")
    files = [f"{name}/{file.name}" for name in folders for file in (SOURCE / name).iterdir()]
    digest = hashlib.sha256()
    for file in sorted([*files, "package.json"]):
        digest.update(f"{file}\0".encode())
        digest.update((SOURCE / file).read_bytes())

    stamp = (SOURCE / "built" / "sources.sha256").read_text(encoding="utf-8").strip()

    assert stamp == digest.hexdigest(), "run `make labextension` and commit labextension/built"


def test_the_build_is_whole():
    built = SOURCE / "built"
    entry = json.loads((built / "package.json").read_text(encoding="utf-8"))
    load = entry["jupyterlab"]["_build"]["load"]
    schema = json.loads((SOURCE / "schema" / "plugin.json").read_text(encoding="utf-8"))

    assert (built / load).exists()
    shipped = built / "schemas" / "rapidfire-jupyter" / "plugin.json"
    assert json.loads(shipped.read_text(encoding="utf-8")) == schema
    assert sum(f.stat().st_size for f in built.rglob("*") if f.is_file()) < 150_000


@pytest.fixture
def tree(tmp_path):
    """A copy of what a wheel is built from, without node_modules."""
    copy = tmp_path / "tree"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py", ".gitignore"):
        shutil.copy(ROOT / name, copy)
    skip = shutil.ignore_patterns("node_modules", "__pycache__", "lib", ".yarn")
    for name in ("rapidfire_jupyter", "labextension"):
        shutil.copytree(ROOT / name, copy / name, ignore=skip)
    return copy


def build(tree, *options):
    """Build a wheel where there is no node; gives its file names and what was said."""
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(tree / "out"), *options]
    path = str(tree / "no-programs")
    done = subprocess.run(
        command, cwd=tree, capture_output=True, text=True, env={**os.environ, "PATH": path}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def names(tree):
    (wheel,) = (tree / "out").glob("*.whl")
    return zipfile.ZipFile(wheel).namelist()


def test_a_wheel_holds_the_build_once_and_needs_no_node(tree):
    build(tree, "-t", "wheel")

    held = names(tree)
    assert [n for n in held if n.endswith(f"{INSTALLED}package.json")]
    assert [n for n in held if f"{INSTALLED}static/remoteEntry." in n]
    assert [n for n in held if "labextension" in n and INSTALLED not in n] == []
    assert "rapidfire.py" in held


def test_without_build_and_node_a_wheel_is_made_without_it(tree):
    shutil.rmtree(tree / "labextension" / "built")

    said = build(tree, "-t", "wheel")

    assert "no node: the JupyterLab sidebar and guard are left out" in said
    assert [n for n in names(tree) if "labextension" in n] == []
    assert "rapidfire_jupyter/experiment.py" in names(tree)


def test_an_sdist_holds_sources_and_build(tree):
    build(tree, "-t", "sdist")

    (archive,) = (tree / "out").glob("*.tar.gz")
    shutil.unpack_archive(archive, tree / "unpacked")
    (inner,) = (tree / "unpacked").iterdir()
    assert (inner / "labextension" / "src" / "index.ts").exists()
    assert (inner / "labextension" / "built" / "package.json").exists()
    build(inner, "-t", "wheel")
    assert [n for n in names(inner) if n.endswith(f"{INSTALLED}package.json")]


def test_the_doctor_says_whether_it_is_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    target = tmp_path / "labextensions" / "rapidfire-jupyter"
    target.mkdir(parents=True)
    shutil.copy(SOURCE / "package.json", target)

    assert doctor.labextension() == __version__
    assert doctor.lab_line(__version__) == f"lab      ok: extension {__version__}"
    assert doctor.lab_line("0.0.1").startswith("lab      other version: the extension is 0.0.1")
    assert doctor.lab_line(None).startswith("lab      missing: JupyterLab has no sidebar")
