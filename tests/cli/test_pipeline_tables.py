"""Tables of `warren pipeline`: names and ids from messages are no markup, and control no terminal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from warren.pipeline.jobs.registry import JOBS

HOSTILE = "[/1] [red]x\n\x1b[2J"
SHOWN = r"[/1] [red]x\n\x1b[2J"


def summaries() -> dict[str, Any]:
    """Return a summary for each job, with what its `show` reads."""
    measure = SimpleNamespace(kind="more consumers", words=f"start a consumer of {HOSTILE}")
    quantiles = {"0.50": 0.1, "0.99": 2.0}
    return {
        "dead-letters": SimpleNamespace(
            deaths=3,
            messages=2,
            places=[
                SimpleNamespace(
                    queue=HOSTILE, reason=HOSTILE, deaths=3, messages=2, median_after=1.0, p90_after=None
                )
            ],
            largest_bursts=[
                SimpleNamespace(reason=HOSTILE, queue=HOSTILE, deaths=3, seconds=2.0, began="2026-01-01")
            ],
            bursts=1,
            unexplained=1,
        ),
        "delivery-audit": SimpleNamespace(
            messages=SimpleNamespace(published=1, delivered=1, acknowledged=1),
            findings={"lost": 1},
            examples={"lost": [SimpleNamespace(message_id=HOSTILE)] * 6},
            places={},
            capture=SimpleNamespace(missing=0),
            backlogs=[SimpleNamespace(queue=HOSTILE, ready=1, measures=[measure])],
            queues=[
                SimpleNamespace(
                    queue=HOSTILE,
                    messages=1,
                    acknowledged=1,
                    to_delivery=SimpleNamespace(quantiles=quantiles),
                    to_acknowledgement=SimpleNamespace(quantiles=None),
                )
            ],
        ),
        "flow": SimpleNamespace(
            events=5,
            seconds=1.0,
            queues=[
                SimpleNamespace(
                    queue=HOSTILE,
                    published_a_second=1.0,
                    settled_a_second=1.0,
                    redelivered_share=0.1,
                    ready=None,
                    stream=True,
                    growth=None,
                    window_used=None,
                    idle=0.5,
                    measures=[measure],
                )
            ],
            missing=1,
        ),
        "order-timeouts": SimpleNamespace(
            orders=1,
            messages=SimpleNamespace(read=2),
            timeout_seconds=1800.0,
            paid_in_time=1,
            paid_late=0,
            cancelled=0,
            recount=[
                SimpleNamespace(
                    timeout_seconds=60.0, paid_in_time=1, paid_late=0, never_paid=0, without_times=1
                )
            ],
            contradictions={},
            undecided=1,
            decided_otherwise=1,
        ),
    }


@pytest.mark.parametrize("job", sorted(JOBS))
def test_a_summary_is_shown_as_it_is(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    JOBS[job].show(summaries()[job])
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert HOSTILE not in text
    assert (SHOWN in text) is (job != "order-timeouts")
