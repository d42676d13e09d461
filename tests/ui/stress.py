# ruff: noqa: E501  (JavaScript in texts)
"""What an open panel costs the browser: 48 runs log three metrics ten times a second each.

`python tests/ui/stress.py [panel|plotly] [seconds]` prints one line of JSON. "panel" has the tab
Curves open, "plotly" the tab Plotly: the same curves, one redraw a second, eight coloured traces and
all others joined by gaps into one grey trace, points thinned to what the pixels can show.
"""

import json
import sys
from typing import Any

from front_page import CHROMIUM, STATIC, show
from playwright.sync_api import CDPSession, Page, sync_playwright

RUNS, ROWS_S, MESSAGES_S = 48, 10, 4
METRICS = ["loss", "eval_loss", "grad_norm"]
# Starts the load; `stress.long` holds the milliseconds in long tasks, `stress.done` when it is over.
LOAD = """([runs, metrics, rowsPerSecond, perSecond, seconds]) => {
  const ids = kernel.rows.map((row) => row.id);
  const stress = (window.stress = { long: 0, longest: 0, messages: 0, done: false, sent: 0, bytes: 0 });
  stress.observer = new PerformanceObserver((list) => {
    for (const task of list.getEntries()) {
      stress.long += task.duration;
      stress.longest = Math.max(stress.longest, task.duration);
    }
  });
  stress.observer.observe({ entryTypes: ["longtask"] });
  const started = performance.now();
  const timer = setInterval(() => {
    const at = Math.min(seconds, (performance.now() - started) / 1000);
    const to = Math.floor(at * rowsPerSecond);
    const { blocks, buffer } = makeBlocks(ids, metrics, stress.sent, to);
    stress.sent = to;
    kernel.rows = kernel.rows.map((row) => ({ ...row, step: to, progress: at / seconds, eta_s: seconds - at,
      last: { ...row.last, loss: 1 + Math.random(), eval_loss: 1 + Math.random(), grad_norm: Math.random() } }));
    kernel.delta({ rows: kernel.rows, blocks, head: { ...kernel.head, elapsed_s: at, progress: at / seconds } }, buffer);
    stress.messages += 1;
    stress.bytes += buffer.byteLength;
    if (at >= seconds) { clearInterval(timer); stress.done = true; }
  }, 1000 / perSecond);
}"""


def heap_mb(cdp: CDPSession) -> float:
    """Size of what is alive in the page."""
    cdp.send("HeapProfiler.collectGarbage")
    return float(cdp.send("Runtime.getHeapUsage")["usedSize"]) / 1e6


def measure(page: Page, renderer: str, seconds: float) -> dict[str, Any]:
    """Share of time in long tasks, longest one, and how the heap grew after the first third."""
    cdp = page.context.new_cdp_session(page)
    show(page, {"runs": RUNS, "points": 1, "metrics": METRICS, "head": {"metrics": METRICS}})
    if renderer == "plotly":
        source = (STATIC / "vendor" / "plotly-basic.min.js").read_text("utf-8")
        page.evaluate(
            "s => { kernel.answers.library = () => ({ buffer: new TextEncoder().encode(s) }); }",
            source,
        )
        page.get_by_role("tab", name="Plotly").click()
        page.wait_for_selector(".js-plotly-plot .trace", state="attached")
    page.evaluate(LOAD, [RUNS, METRICS, ROWS_S, MESSAGES_S, seconds])
    page.wait_for_timeout(seconds * 1000 / 3)
    early = heap_mb(cdp)
    page.wait_for_function("stress.done", timeout=(seconds + 60) * 1000)
    late = heap_mb(cdp)
    found = page.evaluate(
        "({long: stress.long, longest: stress.longest, messages: stress.messages})"
    )
    return {
        "renderer": renderer,
        "long_share": round(found["long"] / (seconds * 1000), 4),
        "longest_ms": round(found["longest"]),
        "messages": found["messages"],
        "heap_mb": [round(early, 1), round(late, 1)],
    }


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else "panel"
    length = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path="/usr/bin/chromium", args=CHROMIUM)
        print(json.dumps(measure(chromium.new_page(), wanted, length)))
        chromium.close()
