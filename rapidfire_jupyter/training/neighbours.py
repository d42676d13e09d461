"""What code beside a run did that the run's numbers may show: cells, and the user's threads."""

from collections.abc import Callable

from rapidfire_jupyter.isolation import cells
from rapidfire_jupyter.training.context import RunContext


class Neighbours:
    """Who has a run's process besides it, looked at whenever the run has done something.

    Args:
        context: The run's; it hears what other threads set.
        tell: Called with each reason why the run may not be exact, once.
    """

    def __init__(self, context: RunContext, tell: Callable[[str], None]) -> None:
        self._context, self._tell = context, tell
        self._since = cells.token()
        self._marked = False  # a cell may have drawn from its stream: nothing more to tell of that
        self._told: set[str] = set()

    def begin(self) -> None:
        """Look at what comes from now on: the run is given the process."""
        self._since = cells.token()

    def forget(self) -> None:
        """Pass over what was set until now: the step beside which it was is undone."""
        self.begin()
        self._context.touched()

    def had_a_cell(self) -> bool:
        """Whether a cell ran meanwhile."""
        return cells.overlapped(self._since)

    def look(self, step: int, draws: bool) -> None:
        """Tell what they did beside a step.

        Args:
            draws: Whether what the run does there draws random numbers.
        """
        if draws and self.had_a_cell() and not self._marked:
            self._marked = True
            self._tell(
                f"a cell ran beside step {step} and may have drawn from its random stream; use "
                'isolation="cells" to prevent that'
            )
        for what in self._context.touched():
            harmless = "stream" in what and not (draws and not self._marked)
            if what not in self._told and not harmless:
                self._told.add(what)
                self._tell(f"{what} was set by other code beside step {step}")
        self.begin()
