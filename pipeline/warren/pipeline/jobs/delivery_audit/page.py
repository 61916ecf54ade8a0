"""Report page of the job `delivery-audit`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from warren.pipeline.durations import format_duration
from warren.pipeline.jobs.delivery_audit.findings import KINDS
from warren.pipeline.jobs.delivery_audit.losses import PLACES
from warren.pipeline.jobs.delivery_audit.outcomes import FATES
from warren.pipeline.report import html_page
from warren.pipeline.report.formatting import brief, clock
from warren.pipeline.report.html_page import BarPart, BarRow, Figure, Table, Tile

if TYPE_CHECKING:
    from warren.pipeline.jobs.delivery_audit.summary import Capture, Example, Latency, Queue, Summary
    from warren.pipeline.jobs.job import Run

SHOWN = 12
"""Number of queues or messages that a chart or list of the page shows; summary.json has more."""
LONGEST_ID = 60
"""Characters of a message id that the page shows; the table of findings has all."""
TONES = {
    "acknowledged": "good",
    "handed_over": "good",
    "streamed": "good",
    "dead_lettered": "late",
    "expired": "late",
    "rejected": "late",
    "dropped": "late",
    "purged": "late",
    "returned": "late",
    "refused": "late",
    "unroutable": "warn",
    "nowhere": "warn",
    "in_hand": "off",
    "waiting": "off",
}
SPEED = (("good", "50 % within"), ("plain", "90 % within"), ("off", "99 % within"))


def page(summary: Summary, run: Run) -> str:
    """Return the report page of the job as HTML."""
    numbers = summary.messages
    found = summary.findings
    return html_page.page(
        title=headline(summary),
        lead=f"{numbers.published:,} messages published, {numbers.delivered:,} delivered, "
        f"{numbers.acknowledged:,} acknowledged, {numbers.dead_lettered:,} dead-lettered, "
        f"{numbers.expired:,} expired, according to {run.place}.",
        tiles=[
            Tile(f"{found['lost']:,}", "lost", "warn" if found["lost"] else "good"),
            Tile(f"{found['duplicated']:,}", "duplicated", "late" if found["duplicated"] else "good"),
            Tile(f"{found['reordered']:,}", "reordered", "late" if found["reordered"] else "good"),
            Tile(
                f"{found['late']:,}",
                f"later than {format_duration(summary.late_seconds)}",
                "late" if found["late"] else "good",
            ),
        ],
        sections=[
            *completeness_notices(summary.capture, found["unknown"]),
            *finding_notices(summary),
            *backlog_notice(summary),
            outcome_figure(summary),
            *latency_figures(summary.queues),
        ],
        foot=[
            *run.foot,
            f"{summary.capture.events:,} events of {summary.capture.sources:,} sources, from "
            f"{format_time(summary.capture.first_at)} to {format_time(summary.capture.last_at)}. The last "
            f"{format_duration(summary.settle_seconds)} are not judged, because more events of these messages may follow.",
            "The tables messages and findings next to this page have a row for each message and queue or finding.",
        ],
    )


def headline(summary: Summary) -> str:
    """Return the page's title: the number of findings of each kind, or that nothing was lost, and whether captured
    events are missing.
    """
    if not summary.capture.events:
        return "No events to audit"
    found = [(kind, count) for kind, count in summary.findings.items() if count and kind != "unknown"]
    if found:
        (first, count), *others = found
        title = f"{count:,} {'message was' if count == 1 else 'messages were'} {first}"
        title += "".join(f", {count:,} {kind}" for kind, count in others)
        return f"{title}; events are missing" if summary.capture.missing else title
    if summary.capture.missing:
        return "No loss found, but events are missing"
    if not summary.messages.published:
        return "No loss found: no publication could be followed"
    return "Nothing was lost"


def completeness_notices(capture: Capture, unknown: int) -> Iterable[str]:
    """Yield notices about captured events that did not reach the stream, and about messages without an id.

    :param capture: numbers of captured and missing events
    :param unknown: number of messages that may be lost, but whose events may be missing instead
    """
    if capture.missing:
        lines = [
            f"{capture.missing:,} events of {capture.sources:,} sources are missing. Messages that they concern are "
            f"not counted as lost; for {unknown:,} messages it is unknown whether they are."
        ]
        lines += [
            f"{gap.source}: {gap.missing:,} missing, "
            + (
                f"between {clock(gap.since)} and {clock(gap.until)}"
                if gap.since
                else f"before {clock(gap.until)}"
            )
            for gap in capture.gaps
        ]
        yield html_page.notice_section("Capture is incomplete", lines, "warn")
    if capture.without_id:
        line = f"{capture.without_id:,} messages were published without a message id and cannot be followed."
        yield html_page.notice_section("Messages without an id", [line], "late")


def finding_notices(summary: Summary) -> Iterable[str]:
    """Yield a notice for each kind of finding (lost, duplicated, reordered, late, unknown) that occurs, with its places
    and examples.
    """
    for kind, count in summary.findings.items():
        if not count:
            continue
        lines = []
        if kind == "lost":
            lines += [f"{lost:,} {PLACES[place]}" for place, lost in summary.places.items() if lost]
            if summary.lost_after_confirm:
                lines.append(f"{summary.lost_after_confirm:,} of them although the broker had confirmed them")
        by_queue = [(queue.queue, queue.findings[kind]) for queue in summary.queues if queue.findings[kind]]
        by_queue.sort(key=lambda each: -each[1])
        lines += [f"{number:,} in queue {shorten(name, LONGEST_ID)}" for name, number in by_queue[:SHOWN]]
        shown = summary.examples[kind][:SHOWN]
        lines += [example_words(example) for example in shown]
        if shown and count > len(shown):
            lines.append("… more in the table findings")
        tone = "warn" if kind in ("lost", "unknown") else "late"
        yield html_page.notice_section(f"{count:,} {kind}: {KINDS[kind]}", lines, tone)


def example_words(example: Example) -> str:
    """Format one message of a finding, such as `id 17: exchange orders, routing key paid, queue bills`."""
    parts = [
        f"{name} {shorten(value, LONGEST_ID) or '(default)'}"
        for name, value in (
            ("exchange", example.exchange),
            ("routing key", example.routing_key),
            ("queue", example.queue),
        )
        if value is not None and (value or name == "exchange")
    ]
    return f"id {shorten(example.message_id, LONGEST_ID)}{': ' if parts else ''}{', '.join(parts)}"


def backlog_notice(summary: Summary) -> Iterable[str]:
    """Yield one notice with the queues that have a backlog and the recommended measures; nothing if there is no
    backlog.
    """
    lines = [
        f"{backlog.queue}: {backlog.ready:,} ready. {' '.join(measure.words for measure in backlog.measures)}"
        for backlog in summary.backlogs[:SHOWN]
    ]
    if lines:
        yield html_page.notice_section("Queues with a backlog, and advice", lines, "plain")


def outcome_figure(summary: Summary) -> str:
    """Return the HTML of the bar chart "Outcomes of the messages": one bar for each outcome, as long as its number of
    messages.
    """
    there = {fate: count for fate, count in summary.stays.items() if count}
    streamed = there.get("streamed", 0)
    total = sum(there.values()) - streamed
    done = there.get("acknowledged", 0) + there.get("handed_over", 0)
    return html_page.figure(
        Figure(
            title="Outcomes of the messages",
            description=f"{done:,} of {total:,} were acknowledged or delivered with automatic acknowledgement. A message "
            "counts once for each queue that it was in."
            if total
            else "No message was seen.",
            rows=tuple(
                BarRow(FATES[fate], (BarPart(count, TONES[fate], ""),), f"{count:,}")
                for fate, count in there.items()
            ),
            table=Table(
                ("messages", "number"),
                tuple(
                    (name.replace("_", " "), f"{count:,}") for name, count in vars(summary.messages).items()
                ),
            ),
            note="The table counts each message once: a fan-out to three queues is one message with three outcomes. A "
            "message that expired and was then dead-lettered counts as both."
            + (
                f" {streamed:,} outcomes are in streams, which keep all messages; they are not judged."
                if streamed
                else ""
            ),
        ),
        "stays",
    )


def latency_figures(queues: tuple[Queue, ...]) -> Iterable[str]:
    """Yield the HTML of two bar charts: the latencies from publication to delivery, and from delivery to
    acknowledgement. A chart without a queue that has such latencies is left out.
    """
    for name, title, what in (
        ("to_delivery", "From publication to delivery", "published"),
        ("to_acknowledgement", "From delivery to acknowledgement", "delivered"),
    ):
        timed = [(queue.queue, getattr(queue, name)) for queue in queues if getattr(queue, name).count]
        if timed:
            yield html_page.figure(latency_figure(timed[:SHOWN], title, what), name.replace("_", "-"))


def latency_figure(timed: list[tuple[str, Latency]], title: str, what: str) -> Figure:
    """Return a bar chart with one bar for each queue: its median, 90 % and 99 % latency.

    :param title: heading of the chart
    :param timed: queues with their latencies
    :param what: event from which the latency is measured, for the description: `published` or `delivered`
    """
    slowest = max(timed, key=lambda each: each[1].quantiles["0.99"])
    rare = brief(slowest[1].quantiles["0.99"])
    rows = []
    for queue, latency in timed:
        half, p90, p99 = (max(latency.quantiles[level], 0.0) for level in ("0.50", "0.90", "0.99"))
        parts = (
            BarPart(half, "good", ""),
            BarPart(p90 - half, "plain", ""),
            BarPart(p99 - p90, "off", ""),
        )
        rows.append(BarRow(shorten(queue), parts, brief(p99)))
    return Figure(
        title=title,
        description=f"The slowest queue is {slowest[0]}: 1 % of its messages take longer than {rare} after they are {what}.",
        rows=tuple(rows),
        legend=SPEED,
        table=Table(
            ("queue", "50 %", "90 %", "99 %", "maximum"),
            tuple(
                (
                    queue,
                    *(format_latency(latency.quantiles[level]) for level in ("0.50", "0.90", "0.99")),
                    format_latency(latency.maximum or 0.0),
                )
                for queue, latency in timed
            ),
        ),
        note="Times between machines are only as precise as their clocks agree.",
    )


def format_time(instant: str | None) -> str:
    """Format an ISO 8601 time in UTC; `never` for None."""
    return "never" if instant is None else clock(instant)


def format_latency(seconds: float) -> str:
    """Format a latency in one unit, such as `4.2 ms`, short enough for a table with four such columns."""
    for unit, each in (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)):
        if 0 < abs(seconds) < 999.5 * each:
            number = seconds / each
            return f"{number:.0f} {unit}" if abs(number) >= 9.95 else f"{round(number, 1):g} {unit}"
    return brief(seconds)


def shorten(name: str, longest: int = 18) -> str:
    """Shorten the name of a queue, or the id of a message, at its end to `longest` characters."""
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
