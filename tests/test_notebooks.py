"""The lessons pass nbval, with the tests' model in place of one of 135 million weights."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
LESSONS = sorted(
    path for path in (ROOT / "notebooks").glob("0*.ipynb") if path.name != "01_quickstart.ipynb"
)
LINE = "MODEL = str(demo_model_path())"  # the one that a user changes to train another model
MODEL = f"""
import sys; sys.path.append({str(ROOT / "tests")!r}); import tiny
MODEL = "tiny-model"
tiny.model().save_pretrained(MODEL); tiny.tokenizer().save_pretrained(MODEL)
"""
needs_install = pytest.mark.skipif(
    importlib.util.find_spec("rapidfire") is None, reason="the package is not installed"
)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_is_saved_without_outputs_and_code_is_formatted(lesson):
    cells = nbformat.read(lesson, as_version=4).cells

    code = [cell for cell in cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    assert sum(cell.source.count(LINE) for cell in code) == 1


@needs_install
@pytest.mark.slow
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_passes_nbval(tmp_path, lesson):
    notebook = nbformat.read(lesson, as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace(LINE, MODEL)
    nbformat.write(notebook, tmp_path / lesson.name)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-current-env", "-p",
         "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path / lesson.name)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-3000:]
