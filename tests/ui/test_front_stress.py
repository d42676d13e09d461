"""An open panel costs the browser little, and no more as time goes by."""

import pytest
from stress import measure


@pytest.mark.slow
def test_forty_eight_runs_for_a_minute_leave_the_browser_idle(page, record_property):
    found = measure(page, "panel", 60)

    print(found)
    record_property("stress", str(found))
    assert found["long_share"] <= 0.10
    assert found["heap_mb"][1] - found["heap_mb"][0] <= 10
