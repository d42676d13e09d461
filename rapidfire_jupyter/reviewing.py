"""`review`: a person looks at rows one by one, keeps or drops them, and writes notes.

`data/reviews.py` knows rows and decisions, `ui/review.py` what is seen in a notebook; here is what
the user holds. It works the same without a notebook.
"""

import textwrap
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from rapidfire_jupyter.data import reviews
from rapidfire_jupyter.data.clean import CleanReport
from rapidfire_jupyter.data.reviews import Decision, Piece, Verdict
from rapidfire_jupyter.errors import DataError
from rapidfire_jupyter.texts import is_path, is_text

if TYPE_CHECKING:
    import pandas as pd

    from rapidfire_jupyter.ui.review import ReviewPanel

MOST_NOTE = 2000  # letters
_WIDTH = 100  # of what a terminal shows
_GLIMPSE = 80  # letters of a row in the file


def review(
    data: Any,
    n: int = 100,
    *,
    experiment: Any = None,
    seed: int = 42,
    trainer_type: str | None = None,
    kind: str | None = None,
) -> "Review":
    """Look at rows one by one and keep or drop them; in a notebook with buttons and keys.

    What is decided is saved at once, by the content of each row, so it holds in any later kernel
    and in any order of the rows. `Review.kept` then leaves out what was dropped.

    Args:
        data: A datasets.Dataset, a list of dicts or a DataFrame. Any: they share no type.
        n: How many different rows to look at; all, if there are no more.
        experiment: An Experiment, or its folder: the file `review.json` in it has the decisions.
            None takes the current folder.
        seed: The same seed chooses the same rows.
        trainer_type: "SFT", "DPO", ...: how rows are read; None takes the first that fits.
        kind: The layout to read them in, where rows have several.

    Raises:
        DataError: An argument cannot be used, or the file is no review's.
    """
    for name, value, least in (("n", n, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise DataError(f"{name} must be a whole number >= {least}, got {value!r}")
    folder = Path.cwd() if experiment is None else getattr(experiment, "folder", experiment)
    if not is_path(folder):
        raise DataError(f"experiment must be an Experiment or its folder, got {experiment!r:.80}")
    dataset = reviews.reviewable(data)
    return Review(dataset, n, seed, Path(folder) / reviews.FILE, trainer_type, kind)


class Review:
    """Rows under review, and the place one is at. Made by `review`.

    A cell that ends with it shows one row at a time, with buttons; `print` shows the same as text.

    Attributes:
        file: Where decisions are saved.
    """

    def __init__(
        self,
        dataset: Any,
        n: int,
        seed: int,
        file: Path,
        trainer_type: str | None,
        kind: str | None,
    ) -> None:
        self.file = file
        self._dataset = dataset
        self._reading = (trainer_type, kind)
        self._rows = reviews.choose(dataset, n, seed)
        self._keys = list(self._rows)
        self._decisions = reviews.read(file)
        self._lock = threading.RLock()  # cells, and clicks beside them
        self._panel: ReviewPanel | None = None
        self._at = 0
        self._at = self._undecided(-1)

    # ---- deciding ----

    def keep(self, note: str | None = None) -> None:
        """Keep the row, and go to the next that is undecided; `note` replaces its note."""
        self.decide("keep", note)

    def drop(self, note: str | None = None) -> None:
        """Drop the row, and go to the next that is undecided; `note` replaces its note."""
        self.decide("drop", note)

    def note(self, text: str) -> None:
        """Write a note on the row; an empty one removes it."""
        key = self._keys[self._at]
        self.decide(self._decision(key).verdict, text, key, stay=True)

    def undecide(self) -> None:
        """Take back what was decided of the row; its note stays."""
        self.decide("", None, stay=True)

    def decide(
        self, verdict: Verdict, note: str | None = None, key: str | None = None, stay: bool = False
    ) -> None:
        """Decide of a row, the one at hand if no key is given.

        Raises:
            DataError: It is none of the verdicts, no text or no row, or it cannot be saved; then
                nothing is decided.
        """
        if verdict not in get_args(Verdict):
            raise DataError(f"a verdict is 'keep', 'drop' or '' for none, got {verdict!r:.40}")
        if note is not None and not is_text(note):
            raise DataError(f"a note is a text of whole characters, got {note!r:.80}")
        if key is not None and key not in self._keys:
            raise DataError(f"no row under review has the key {key!r:.40}; see go(place)")
        with self._lock:
            key = self._keys[self._at] if key is None else key
            note = self._decision(key).note if note is None else note[:MOST_NOTE]
            begins = " ".join(" ".join(p.text for p in self._pieces(key)).split())[:_GLIMPSE]
            self._decisions = reviews.write(self.file, key, Decision(verdict, note, begins))
            if key == self._keys[self._at] and not stay:
                self._at = self._undecided(self._at)
        self._show()

    # ---- going about ----

    def next(self) -> None:
        """Go to the next row; after the last one, nothing."""
        self.go(self._at + 2)

    def back(self) -> None:
        """Go to the row before; before the first one, nothing."""
        self.go(self._at)

    def go(self, place: int) -> None:
        """Go to a place among the rows under review, counted from 1.

        Raises:
            DataError: It is no number.
        """
        if type(place) is not int:
            raise DataError(f"a place is a whole number from 1, got {place!r:.40}")
        with self._lock:
            self._at = min(max(place - 1, 0), len(self._keys) - 1)
        self._show()

    # ---- what there is ----

    @property
    def row(self) -> dict[str, Any]:
        """The row at hand, as the data have it."""
        return dict(self._dataset[self.number - 1])

    @property
    def number(self) -> int:
        """The number of the row at hand in the data, counted from 1."""
        return self._rows[self._keys[self._at]] + 1

    @property
    def progress(self) -> str:
        """How many rows are decided: "12 of 100, 2 dropped"."""
        done = [self._decision(key).verdict for key in self._keys]
        return f"{len(done) - done.count('')} of {len(done)}, {done.count('drop')} dropped"

    def decisions(self) -> "pd.DataFrame":
        """The rows under review of which something was decided or noted: row, verdict, note."""
        import pandas as pd

        found = [(self._rows[key] + 1, self._decision(key)) for key in self._keys]
        rows = [(row, d.verdict, d.note) for row, d in found if d.verdict or d.note]
        return pd.DataFrame(rows, columns=["row", "verdict", "note"])

    def kept(self, data: Any = None) -> tuple[Any, CleanReport]:
        """The data without the rows that were dropped, and the report of what was.

        Every row counts that is equal to a dropped one, and every decision in the file.

        Args:
            data: Other data to leave them out of; None for those under review. Any: as `review`.

        Raises:
            DataError: No row is left.
        """
        dataset = self._dataset if data is None else reviews.reviewable(data)
        return reviews.without_dropped(dataset, reviews.read(self.file))

    def __repr__(self) -> str:
        lines = [f"review: {self.progress}; row {self.number} of {len(self._dataset)}"]
        decision = self._decision(self._keys[self._at])
        if decision.verdict or decision.note:
            lines.append(f"  {decision.verdict or 'undecided'} {decision.note}".rstrip())
        for piece in self._pieces(self._keys[self._at]):
            lines.append(f"{piece.name}:")
            for line in piece.text.splitlines():
                lines += textwrap.wrap(line, _WIDTH, initial_indent="  ", subsequent_indent="  ")
        return "\n".join(lines)

    # ---- in a notebook ----

    def _ipython_display_(self) -> None:
        from rapidfire_jupyter.ui import review as seen

        if not seen.has_widgets():
            print(self)
            return
        if self._panel is None:
            self._panel = seen.ReviewPanel(self._shown, self._do)
        self._panel.show()

    def _shown(self) -> Mapping[str, Any]:
        """What a view shows. Any: JSON values."""
        with self._lock:
            key = self._keys[self._at]
            decision = self._decision(key)
            return {
                "key": key,
                "place": self._at + 1,
                "of": len(self._keys),
                "row": self.number,
                "rows": len(self._dataset),
                "pieces": [(p.name, p.text, p.column) for p in self._pieces(key)],
                "verdict": decision.verdict,
                "note": decision.note,
                "progress": self.progress,
                "done": sum(bool(self._decision(key).verdict) for key in self._keys),
                "file": str(self.file),
            }

    def _do(self, what: str, key: str, text: str) -> None:
        """What a view asks for of the row that it shows."""
        if what in ("keep", "drop"):
            self.decide("keep" if what == "keep" else "drop", text, key)
        elif what == "undecide":
            self.decide("", text, key, stay=True)
        elif what == "note":
            if text != self._decision(key).note:
                self.decide(self._decision(key).verdict, text, key, stay=True)
        elif what in ("next", "back"):
            step = 2 if what == "next" else 0
            self.go(self._keys.index(key) + step)

    def _show(self) -> None:
        if self._panel is not None:
            self._panel.refresh()

    def _decision(self, key: str) -> Decision:
        return self._decisions.get(key, Decision())

    def _pieces(self, key: str) -> list[Piece]:
        return reviews.pieces(self._dataset, self._rows[key], *self._reading)

    def _undecided(self, at: int) -> int:
        """The next place without a verdict, from the start again after the end; else the last."""
        places = [*range(at + 1, len(self._keys)), *range(at + 1)]
        left = (p for p in places if not self._decision(self._keys[p]).verdict)
        return next(left, len(self._keys) - 1)
