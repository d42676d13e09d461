"""The report: a whole page of an experiment in one file, without script or network."""

from html import escape

from rapidfire_jupyter.ui.fold import Fold
from rapidfire_jupyter.ui.metrics import by_use
from rapidfire_jupyter.ui.series import main_metrics, short
from rapidfire_jupyter.ui.svg import STYLE
from rapidfire_jupyter.ui.texts import sendable
from rapidfire_jupyter.ui.twin import _TABLE_STYLE, best_config, charts, summary, table, told
from rapidfire_jupyter.ui.view import Facts, differing

MOST_RUNS = 1_000
_PAGE_STYLE = (
    ":root{color-scheme:light dark}body{font:14px/1.5 system-ui,sans-serif;max-width:1100px;"
    "margin:24px auto;padding:0 16px}h1{font-size:22px}h2{font-size:16px;margin-top:28px}"
    ".rf-g{display:flex;flex-wrap:wrap;gap:8px 24px}.rf-g svg{width:520px}"
    ".rf-w{overflow-x:auto}pre{white-space:pre-wrap}"
)


def report_html(fold: Fold, facts: Facts) -> str:
    """The page: the table, the best configuration, curves of every metric, what happened."""
    constants, _ = differing(fold.state) if fold.state.runs else ({}, [])
    first = main_metrics(fold)
    metrics = first + [name for name in by_use(fold.metrics) if name not in first]
    same = "\n".join(f"{short(name)} = {told(value)}" for name, value in constants.items())
    happened = "".join(
        f"<tr><td>{entry['time']:.0f} s</td><td>{escape(entry['text'])}</td></tr>"
        for entry in fold.entries
    )
    title = escape(facts.name)
    return sendable(
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{title}</title><style>{_PAGE_STYLE}{STYLE}{_TABLE_STYLE}</style></head><body>"
        f"<h1>{title}</h1><p>{escape(summary(fold, facts))}</p>"
        f'<h2>Runs</h2><div class="rf-w">{table(fold, MOST_RUNS)}</div>{best_config(fold)}'
        "<h2>Curves</h2><p>The number at a curve's end is its run's.</p>"
        f'<div class="rf-g">{charts(fold, metrics)}</div>'
        f"<h2>The same for all runs</h2><pre>{escape(same)}</pre>"
        f'<h2>What happened</h2><table class="rf-t">{happened}</table></body></html>\n'
    )
