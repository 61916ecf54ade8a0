"""Report page of delivery-audit: title, and number formats."""

from __future__ import annotations

from dataclasses import replace

import pytest

from warren.pipeline.jobs.delivery_audit.findings import KINDS
from warren.pipeline.jobs.delivery_audit.losses import PLACES
from warren.pipeline.jobs.delivery_audit.outcomes import FATES
from warren.pipeline.jobs.delivery_audit.page import format_latency, page
from warren.pipeline.jobs.delivery_audit.summary import Capture, Example, Latency, Messages, Queue, Summary
from warren.pipeline.jobs.job import Run

RUN = Run("delivery-audit", "amqp://localhost/", ("warren.events",), None, False, 1.0)


def summary(*, events: int = 10, missing: int = 0, published: int = 5, **findings: int) -> Summary:
    nothing = dict.fromkeys(vars_of(Messages), 0)
    return Summary(
        settle_seconds=10.0,
        late_seconds=60.0,
        capture=Capture(events, 1, 1, missing, 0, None, None, ()),
        messages=replace(Messages(**nothing), published=published),
        stays=dict.fromkeys(FATES, 0),
        findings={**dict.fromkeys(KINDS, 0), **findings},
        examples=dict.fromkeys(KINDS, ()),
        places=dict.fromkeys(PLACES, 0),
        lost_after_confirm=0,
        queues=(),
        queues_in_all=0,
        backlogs=(),
    )


def vars_of(kind: type) -> list[str]:
    return [*kind.__annotations__]


@pytest.mark.parametrize(
    ("audited", "says"),
    [
        (summary(events=0, published=0), "No events to audit"),
        (summary(), "Nothing was lost"),
        (summary(lost=1), "1 message was lost"),
        (summary(lost=1200, duplicated=2), "1,200 messages were lost, 2 duplicated"),
        (summary(duplicated=30), "30 messages were duplicated"),
        (summary(reordered=1, late=4, missing=7), "1 message was reordered, 4 late; events are missing"),
        (summary(late=3, published=0), "3 messages were late"),
        (summary(missing=7, unknown=2), "No loss found, but events are missing"),
        (summary(published=0), "No loss found: no publication could be followed"),
    ],
)
def test_the_title_names_all_findings(audited: Summary, says: str) -> None:
    assert f"<h1>{says}</h1>" in page(audited, RUN)


def test_a_finding_names_its_messages_and_where_they_were() -> None:
    lost = (
        Example("i" * 5000, "orders", "paid", "bills"),
        Example("order-17", "", "bills", "bills"),
        Example("order-18", "orders", "nobody", None),
        Example("order-19", None, None, "bills"),
        *[Example(f"order-{number}", None, None, None) for number in range(20, 30)],
    )
    audited = summary(lost=14)
    audited = replace(audited, examples={**audited.examples, "lost": lost})
    text = page(audited, RUN)
    assert "i" * 50 in text
    assert "i" * 61 not in text
    assert "…: exchange orders, routing key paid, queue bills</li>" in text
    assert "<li>id order-17: exchange (default), routing key bills, queue bills</li>" in text
    assert "<li>id order-18: exchange orders, routing key nobody</li>" in text
    assert "<li>id order-19: queue bills</li>" in text
    assert "<li>id order-20</li>" in text
    assert "<li>… more in the table findings</li>" in text


def test_findings_are_counted_by_queue() -> None:
    none = Latency(0, {}, None)
    counted = [("mail", 2), ("bills", 30), ("quick", 0)]
    queues = tuple(
        Queue(name, False, 100, 90, 0, {**dict.fromkeys(KINDS, 0), "late": late}, none, none)
        for name, late in counted
    )
    text = page(replace(summary(late=32), queues=queues), RUN)
    assert "<li>30 in queue bills</li><li>2 in queue mail</li>" in text
    assert "in queue quick" not in text


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0 s"),
        (9e-6, "9 µs"),
        (0.00944, "9.4 ms"),
        (0.0467, "47 ms"),
        (0.9996, "1 s"),
        (1.28, "1.3 s"),
        (156.122524, "156 s"),
        (-299.9, "-300 s"),
        (999.7, "16 min 40 s"),
        (90_000.0, "1 d 1 h"),
    ],
)
def test_latencies_are_short(seconds: float, shown: str) -> None:
    assert format_latency(seconds) == shown
    assert all(len(word) <= 4 for word in shown.split())
