# ruff: noqa: E501  (JavaScript in texts)
"""The front end's side of the protocol, as ui/wire.py has it."""

import json

from front_page import blank, sent, show


def text(page, selector):
    return page.locator(selector).first.inner_text()


def test_a_view_says_hello_and_draws_the_snapshot(page):
    show(page, {"runs": 3})

    (hello,) = sent(page, "hello")
    assert hello["view"]
    assert page.locator("tbody tr[data-run]").count() == 3
    assert text(page, ".rf-name") == "support-bot"
    assert "Curves of loss by step: 3 runs" in page.locator("canvas").first.get_attribute(
        "aria-label"
    )


def test_before_the_kernel_answers_a_skeleton_is_shown(page):
    show(page, {"auto": False})

    assert "Waiting for the kernel" in text(page, ".rf-plot")

    page.evaluate("kernel.model.receive(...kernel.snapshot())")

    page.wait_for_selector("tr[data-run='8']")
    assert page.locator(".rf-waiting").count() == 0


def test_deltas_replace_rows_and_add_points(page):
    show(page, {"runs": 2, "points": 10})
    page.evaluate("""() => {
      const { blocks, buffer } = makeBlocks([1], kernel.metrics, 10, 15);
      kernel.delta({ rows: [{ ...kernel.rows[0], status: "failed", error: "out of memory" }], blocks }, buffer);
    }""")

    page.wait_for_selector("tr[data-run='1'] [data-status=failed]")
    page.get_by_role("button", name="Numbers").click()
    assert page.locator(".rf-curves tbody tr").first.inner_text().split("\t")[1] == "15"
    assert "out of memory" in page.locator("tr[data-run='1'] td[title]").nth(1).get_attribute(
        "title"
    )


def test_a_gap_asks_for_one_snapshot_and_nothing_older_is_applied(page):
    show(page, {"runs": 2})
    page.evaluate("""() => {
      kernel.auto = false;
      kernel.seq += 1;  // a message that gets lost
      kernel.set(1, { status: "completed" });
      kernel.set(2, { status: "completed" });
    }""")

    asked = [ask for ask in sent(page, "ask") if ask["what"] == "snapshot"]
    assert len(asked) == 1
    assert page.locator("[data-status=completed]").count() == 0

    page.evaluate("kernel.model.receive(...kernel.snapshot())")
    page.wait_for_function(
        "document.querySelectorAll('tbody [data-status=completed]').length === 2"
    )
    page.evaluate("""() => {
      const [old, buffer] = kernel.snapshot();
      kernel.model.receive({ ...old, seq: 1, rows: [] }, buffer);
      kernel.model.receive({ type: "delta", seq: 2, head: null, rows: [], gone: [1, 2], reset: [], blocks: [], entries: [], slices: [] });
      kernel.delta({ gone: [2] });
    }""")
    page.wait_for_function("document.querySelectorAll('tbody tr').length === 1")


def test_a_lost_last_message_is_noticed_by_the_pong(page):
    page.clock.install()
    show(page, {"runs": 2})
    page.evaluate("kernel.seq += 1")

    page.clock.run_for(20_500)

    assert sent(page, "ping")[0]["seq"] == 1
    assert [ask["what"] for ask in sent(page, "ask")] == ["snapshot"]


def test_a_kernel_that_gives_no_answer_is_told_and_the_last_state_kept(page):
    page.clock.install()
    show(page, {"runs": 2})
    page.evaluate("kernel.auto = false")

    page.clock.run_for(20_500)
    assert page.locator(".rf-banner").is_hidden()
    page.clock.run_for(11_000)

    assert "does not answer" in text(page, ".rf-banner")
    assert page.locator("tbody tr").count() == 2

    page.evaluate("kernel.delta({})")
    assert page.locator(".rf-banner").is_hidden()


def test_an_order_without_an_ack_is_not_confirmed_after_two_seconds(page):
    page.clock.install()
    show(page, {"runs": 2, "auto": False})
    page.evaluate("kernel.model.receive(...kernel.snapshot())")

    page.locator("tr[data-run='1'] [data-op=stop]").click()
    assert "sent, not confirmed" not in text(page, ".rf-notices")
    page.clock.run_for(3_000)

    assert "sent, not confirmed" in text(page, ".rf-notices")


def test_saved_state_is_drawn_without_a_kernel(page):
    blank(page)
    page.evaluate("""async () => {
      const [snapshot, buffer] = new FakeKernel({ runs: 3 }).snapshot();
      const bytes = new Uint8Array(buffer.buffer);
      let text = "";
      for (const byte of bytes) text += String.fromCharCode(byte);
      window.kernel = new FakeKernel({ runs: 3, auto: false, traits: { _snap: { ...snapshot, seq: 900, buffer64: btoa(text) } } });
      window.panel = await mount(kernel, source, document.getElementById("one"));
    }""")

    assert page.locator("tbody tr[data-run]").count() == 3
    assert "3 runs" in page.locator("canvas").first.get_attribute("aria-label")

    page.evaluate("kernel.rows.pop(); kernel.model.receive(...kernel.snapshot())")

    page.wait_for_function("document.querySelectorAll('tbody tr').length === 2")


def test_two_views_share_one_link_and_closing_leaves_no_listener(page):
    show(page, {"runs": 2})
    page.evaluate(
        "async () => { window.second = await panel.again(document.getElementById('two')); }"
    )

    assert len(sent(page, "hello")) == 2
    assert page.evaluate("kernel.model.listeners.length") == 1
    page.locator("#two tr[data-run='1'] [data-op=stop]").click()
    assert "stop" in text(page, "#one tr[data-run='1'] .rf-chip")

    page.evaluate("panel.close()")
    assert page.evaluate("kernel.model.listeners.length") == 1
    page.evaluate("kernel.set(2, { status: 'failed' })")
    page.wait_for_selector("#two tr[data-run='2'] [data-status=failed]")
    page.evaluate("second()")

    assert page.evaluate("kernel.model.listeners.length") == 0
    views = [hello["view"] for hello in sent(page, "hello")]
    assert sorted(bye["view"] for bye in sent(page, "bye")) == sorted(views)
    assert page.locator(".rf-panel").count() == 0


def test_a_hundred_views_leave_nothing_behind(page):
    show(page, {"runs": 4})
    cdp = page.context.new_cdp_session(page)

    def counts():
        cdp.send("HeapProfiler.collectGarbage")
        found = cdp.send("Memory.getDOMCounters")
        return found["nodes"], found["jsEventListeners"]

    once = """async (times) => {
      for (let i = 0; i < times; i += 1) {
        const close = await panel.again(document.getElementById("two"));
        await new Promise((done) => requestAnimationFrame(done));
        close();
      }
    }"""
    page.evaluate(once, 5)
    nodes, listeners = counts()
    page.evaluate(once, 100)
    for _ in range(30):  # the collector takes what it finds in a frame or two
        nodes_after, listeners_after = counts()
        if nodes_after <= nodes + 200 and listeners_after <= listeners + 20:
            break
        page.evaluate("() => new Promise((done) => requestAnimationFrame(done))")

    assert page.evaluate("kernel.model.listeners.length") == 1
    assert listeners_after <= listeners + 20
    assert nodes_after <= nodes + 200


def test_what_is_shown_survives_a_reload(page):
    page.route(
        "http://panel.test/", lambda route: route.fulfill(body="<p>", content_type="text/html")
    )
    page.goto("http://panel.test/")
    show(page, {"runs": 3})
    page.locator("tr[data-run='2'] input").click()
    page.get_by_label("Metric").select_option("eval_loss")
    page.goto("http://panel.test/")
    show(page, {"runs": 3})

    assert page.locator("tr[aria-selected=true]").get_attribute("data-run") == "2"
    assert page.get_by_label("Metric").input_value() == "eval_loss"


def test_messages_of_views_have_the_shapes_of_wire(page):
    show(page, {"runs": 2})
    page.locator("tr[data-run='1'] [data-op=more]").click()
    page.get_by_role("tab", name="Log").click()

    (order,), (ask,) = sent(page, "order"), sent(page, "ask")
    assert set(order) - {"sentAt"} == {"type", "view", "id", "kind", "run", "args"}
    assert (order["kind"], order["run"], order["args"]) == ("boost", 1, {"weight": 2})
    assert set(ask) - {"sentAt"} == {"type", "view", "id", "what", "args"}
    assert (ask["what"], ask["args"]) == ("log", {"run": 1, "lines": 200})
    assert json.dumps(order)
