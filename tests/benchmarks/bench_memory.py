"""(e) Resident memory per added LoRA run, each time in a fresh process.

The budget is 1.2 x (adapter, gradient and Adam's moments) + 12 MB. Growth is shown as a share of
that budget and of the base, which a process or trainer of its own would load again for each run.
"""

import json
import subprocess
import sys
from pathlib import Path

from figures import arguments, median, show


def main():
    options = arguments(__doc__)
    sizes = {"tiny": (4, 12)} if options.quick else {"tiny": (8, 32), "10M": (8, 32)}
    for size, (first, last) in sizes.items():
        found = [grow(size, first, last) for _ in range(options.rounds or 2)]
        figures = [
            median("(e) growth per run", [f["growth_mib"] for f in found], "MiB"),
            median("    of the budget", [100 * f["growth_mib"] / budget_mib(f) for f in found],
                   "%", 100),
            median("    of the base", [100 * f["growth_mib"] / f["base_mib"] for f in found], "%"),
        ]  # fmt: skip
        show(f"memory from {first} to {last} parked runs, {size}", figures, options.json)


def grow(size, first, last):
    """Run `growth.py` in a process of its own."""
    script = Path(__file__).with_name("growth.py")
    command = [sys.executable, str(script), size, str(first), str(last)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def budget_mib(figures):
    return 1.2 * figures["adapter_gradient_adam_mib"] + 12e6 / 2**20


if __name__ == "__main__":
    main()
