"""Report page of the job `flow`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from warren.pipeline.durations import format_duration
from warren.pipeline.report import charts, html_page
from warren.pipeline.report.charts import Chart, LimitLine, RankedBar, Ranking, Series
from warren.pipeline.report.formatting import clock, label
from warren.pipeline.report.html_page import BarPart, Table, Tile

if TYPE_CHECKING:
    from warren.pipeline.jobs.flow.summary import Queue, Summary, TimelineStep
    from warren.pipeline.jobs.flow.trend import Forecast, Growth
    from warren.pipeline.jobs.job import Run

DRAWN, LISTED = 4, 12
"""Number of queues with charts of their own, and of rows in a list or table."""


def page(summary: Summary, run: Run) -> str:
    """Return the report page of the job as HTML."""
    needy = [queue for queue in summary.queues if needs_help(queue)]
    published = sum(queue.published_a_second for queue in summary.queues)
    settled = sum(queue.settled_a_second for queue in summary.queues)
    waiting = sum(queue.ready or 0 for queue in summary.queues)
    return html_page.page(
        title=headline(summary, needy),
        lead=lead(summary, run),
        tiles=[
            Tile(rate(published), "messages per second published"),
            Tile(rate(settled), "messages per second settled", "good"),
            Tile(f"{waiting:,}", "ready at the end", "late" if waiting else "good"),
            Tile(
                f"{len(needy):,}",
                "queue needs attention" if len(needy) == 1 else "queues need attention",
                "warn" if needy else "good",
            ),
        ],
        sections=list(sections(summary, needy)),
        foot=[
            f"{summary.events:,} events of {summary.sources:,} sources, {summary.missing:,} missing.",
            *run.foot,
        ],
    )


def headline(summary: Summary, needy: list[Queue]) -> str:
    """Return the page's title, which names the fastest growing queue or, if none grows, the one with the largest
    backlog.

    :param needy: queues for which a measure is recommended
    """
    if not summary.queues:
        return "No events of a queue"
    growing = [queue for queue in summary.queues if queue.growth is not None and queue.growth.low > 0]
    if growing:
        worst = max(growing, key=lambda queue: queue.growth.slope if queue.growth else 0.0)
        assert worst.growth is not None
        others = f", and {len(growing) - 1:,} more" if len(growing) > 1 else ""
        return f"{worst.queue} grows by {rate(worst.growth.slope)} messages per second{others}"
    if needy:
        return f"{needy[0].queue} keeps a backlog of {needy[0].ready or 0:,} messages"
    return "The consumers keep up"


def lead(summary: Summary, run: Run) -> str:
    """Return the introduction below the title: what was read, the number of queues, and the period."""
    if summary.began is None or summary.ended is None:
        return f"There are no events of a queue in {run.place}."
    return (
        f"Events in {run.place} about {len(summary.queues) + summary.more_queues:,} queues, from "
        f"{clock(summary.began)} to {clock(summary.ended)} UTC."
    )


def sections(summary: Summary, needy: list[Queue]) -> Iterable[str]:
    yield from uncertainty_notice(summary)
    if needy:
        lines = [f"{queue.queue}: {each.words}" for queue in needy for each in queue.measures]
        yield html_page.notice_section("Advice", lines, "warn")
    elif summary.queues:
        yield html_page.notice_section(
            "Advice", ["Nothing is needed: no queue has a backlog that grows or persists."], "good"
        )
    if not summary.queues:
        return
    yield queues(summary)
    yield from forecasts(summary)
    for at, queue in enumerate(summary.queues[:DRAWN]):
        if not queue.stream:
            yield backlog(queue, summary.step_seconds, f"backlog{at}")
        yield rates(queue, summary.step_seconds, f"rates{at}")
    if summary.consumers:
        yield consumers(summary)


def uncertainty_notice(summary: Summary) -> Iterable[str]:
    """Yield one notice about numbers that missing or unread events make uncertain; nothing if there are none."""
    lines = []
    if summary.missing:
        lines.append(f"Capture lost {summary.missing:,} events. Backlogs may be wrong by as many.")
    if summary.cut_off:
        lines.append(f"The first {summary.cut_off:,} events of the sources were not read.")
    if summary.unrouted:
        lines.append(
            f"The queue of {summary.unrouted:,} publishes is unknown: no delivery had their exchange and routing key. "
            "Events captured by the broker would contain it."
        )
    before = [f"{queue.queue} {queue.began_with:,}" for queue in summary.queues if queue.began_with]
    if before:
        lines.append(f"Minimum backlog before the first event: {', '.join(before[:LISTED])}.")
    if lines:
        yield html_page.notice_section("Missing information", lines, "late")


def queues(summary: Summary) -> str:
    shown = summary.queues[:LISTED]
    more = len(summary.queues) + summary.more_queues - len(shown)
    return charts.ranking(
        Ranking(
            title="Ready and unacknowledged messages at the end",
            description="Messages that are ready for delivery, and messages that consumers have not acknowledged.",
            rows=tuple(
                RankedBar(
                    queue.queue,
                    (BarPart(queue.ready or 0, "late", ""), BarPart(queue.unacked or 0, "plain", "")),
                    "a stream" if queue.stream else f"{queue.ready:,} + {queue.unacked:,}",
                )
                for queue in shown
            ),
            table=Table(
                ("queue", "in/s", "out/s", "redelivered", "trend/s"),
                tuple(
                    (
                        queue.queue,
                        rate(queue.published_a_second),
                        rate(queue.settled_a_second),
                        f"{queue.redelivered_share:.1%}",
                        "-" if queue.stream else trend_words(queue.growth),
                    )
                    for queue in shown
                ),
            ),
            legend=(("late", "ready"), ("plain", "unacknowledged")),
            note="in and out: published and settled messages per second, over the whole period; redelivered: share of "
            "deliveries; trend: growth of the ready messages over the last "
            f"{format_duration(summary.trend_seconds)}, with its 95 % interval."
            + (
                " A stream keeps all messages, so it has only rates."
                if any(each.stream for each in shown)
                else ""
            )
            + (f" {more:,} more queues are in the tables." if more else ""),
        ),
        "queues",
    )


def forecasts(summary: Summary) -> Iterable[str]:
    lines = [f"{queue.queue}: {forecast_words(queue.forecast)}" for queue in summary.queues if queue.forecast]
    if lines:
        soon = any(queue.forecast and queue.forecast.full_in is not None for queue in summary.queues)
        yield html_page.notice_section("Forecast of full queues", lines, "warn" if soon else "good")


def forecast_words(ahead: Forecast) -> str:
    """Format the forecast of a full queue as the end of a sentence, such as `full in 21 min; it holds 900 of 1,000
    messages.`
    """
    limit = f"{ahead.limit:,.0f} {ahead.unit}"
    if ahead.level >= ahead.limit:
        return f"it is full: {ahead.level:,.0f} of {limit}."
    holds = f"holds {ahead.level:,.0f} of {limit}"
    if ahead.full_in is not None:
        first = "" if ahead.earliest is None else f", {format_duration(ahead.earliest)} at the earliest"
        last = "" if ahead.latest is None else f", {format_duration(ahead.latest)} at the latest"
        return f"full in {format_duration(ahead.full_in)}{first}{last}; it {holds}."
    if ahead.earliest is not None:
        return (
            f"it {holds}. There is no significant trend; at the fastest growth within the interval it would be full in "
            f"{format_duration(ahead.earliest)}."
        )
    return f"it {holds}, and will not be full: it does not grow."


def backlog(queue: Queue, step: int, name: str) -> str:
    ahead = queue.forecast
    highest = max(((each.ready or 0) + (each.unacked or 0) for each in queue.timeline), default=0)
    levels = (
        (LimitLine(ahead.limit, f"limit {ahead.limit:,.0f}"),)
        if ahead is not None and ahead.unit == "messages" and ahead.limit <= 3 * max(highest, 1)
        else ()
    )
    return charts.chart(
        Chart(
            title=f"{queue.queue}: backlog",
            description=f"{queue.ready:,} messages ready at the end, {queue.peak:,} at most; {queue.unacked:,} "
            f"unacknowledged. Trend of the ready messages: {trend_words(queue.growth)} per second.",
            labels=labels(queue.timeline, step, end=True),
            series=(
                Series("ready", "late", tuple(float(each.ready or 0) for each in queue.timeline)),
                Series("unacknowledged", "plain", tuple(float(each.unacked or 0) for each in queue.timeline)),
            ),
            table=Table(
                ("at (UTC)", "ready", "unacknowledged"),
                tuple(
                    (clock(end_of(each).isoformat()), f"{each.ready:,}", f"{each.unacked:,}")
                    for each in queue.timeline
                ),
            ),
            lines=True,
            levels=levels,
            note=f"Values at the end of each {format_duration(step)}.",
        ),
        name,
    )


def rates(queue: Queue, step: int, name: str) -> str:
    kinds: tuple[tuple[str, str, Callable[[TimelineStep], int]], ...] = (
        ("published", "plain", lambda each: each.published),
        ("delivered", "late", lambda each: each.delivered),
        ("settled", "good", lambda each: each.settled),
        ("redelivered", "warn", lambda each: each.redelivered),
    )
    return charts.chart(
        Chart(
            title=f"{queue.queue}: messages per second",
            description=f"{rate(queue.published_a_second)} published, {rate(queue.delivered_a_second)} delivered, "
            f"{rate(queue.settled_a_second)} settled; {queue.redelivered_share:.1%} of the deliveries were redeliveries.",
            labels=labels(queue.timeline, step),
            series=tuple(
                Series(kind, tone, tuple(count(each) / each.seconds for each in queue.timeline))
                for kind, tone, count in kinds
            ),
            table=Table(
                ("from (UTC)", *(kind for kind, _, _ in kinds)),
                tuple(
                    (clock(each.at), *(f"{count(each):,}" for _, _, count in kinds))
                    for each in queue.timeline
                ),
            ),
            lines=True,
            note=f"Averages over each {format_duration(step)}; the table contains numbers of messages.",
        ),
        name,
    )


def consumers(summary: Summary) -> str:
    shown = summary.consumers[:LISTED]
    more = len(summary.consumers) + summary.more_consumers - len(shown)
    return charts.ranking(
        Ranking(
            title="Use of prefetch windows",
            description="Average number of unacknowledged messages of a consumer, of its prefetch.",
            rows=tuple(
                RankedBar(
                    f"{each.queue}: {each.consumer}",
                    (
                        BarPart(each.window_used or 0, "plain", ""),
                        BarPart(max(1 - (each.window_used or 0), 0), "off", ""),
                    )
                    if each.prefetch
                    else (),
                    f"{each.held:,.1f} of {each.prefetch:,}"
                    if each.prefetch
                    else f"{each.held:,.1f}, no limit known",
                )
                for each in shown
            ),
            table=Table(
                ("consumer", "settled/s", "full", "idle"),
                tuple(
                    (
                        f"{each.queue}: {each.consumer}",
                        rate(each.settled / each.seconds),
                        "-" if each.full is None else f"{each.full:.0%}",
                        "-" if each.idle is None else f"{each.idle:.0%}",
                    )
                    for each in shown
                ),
            ),
            legend=(("plain", "unacknowledged"), ("off", "free")),
            note="full and idle: shares of time with a full window, and without a message. If only a broker captured events "
            "of a consumer, messages in transit count as unacknowledged."
            + (f" {more:,} more consumers are in the tables." if more else ""),
        ),
        "consumers",
    )


def labels(timeline: tuple[TimelineStep, ...], step: int, *, end: bool = False) -> tuple[str, ...]:
    instants = [end_of(each) if end else datetime.fromisoformat(each.at) for each in timeline]
    return tuple(label(instant.timestamp(), step) for instant in instants)


def end_of(step: TimelineStep) -> datetime:
    return datetime.fromisoformat(step.at) + timedelta(seconds=step.seconds)


def needs_help(queue: Queue) -> bool:
    """Return whether a measure is recommended against the queue's backlog."""
    return any(each.kind != "nothing" for each in queue.measures)


def rate(value: float) -> str:
    """Format a rate, without its unit (messages per second), with fewer decimals the larger it is."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}" if abs(value) >= 1 else f"{value:.2g}"


def trend_words(growth: Growth | None) -> str:
    """Format the growth of a backlog, such as `+12.3 ± 2.2`: messages per second, and half of the width of the 95 %
    confidence interval.
    """
    if growth is None:
        return "unknown"
    return f"{growth.slope:+,.1f} ± {growth.high - growth.slope:,.1f}"
