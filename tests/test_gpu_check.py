"""The script that checks a GPU runs on a CPU too, as far as it can."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "gpu" / "check.py"


@pytest.mark.slow
def test_the_script_for_a_gpu_passes_on_a_cpu():
    done = subprocess.run([sys.executable, SCRIPT, "--cpu"], capture_output=True, text=True)

    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(line.startswith("pass") for line in lines) >= 8
    assert lines[-1].startswith("all passed")
    for what in ("LoftQ beside plain LoRA", "Liger", "GRPO with vLLM"):
        assert any(line.startswith(f"info  {what} ") and "skipped: " in line for line in lines)


@pytest.mark.gpu
def test_the_script_passes_on_the_gpu_there_is():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
