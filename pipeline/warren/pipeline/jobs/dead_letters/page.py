"""Report page of the job `dead-letters`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from warren.pipeline.durations import format_duration
from warren.pipeline.jobs.dead_letters.facts import PUBLISHED_FROM
from warren.pipeline.report import charts, html_page
from warren.pipeline.report.charts import TONES, Chart, RankedBar, Ranking, Series
from warren.pipeline.report.formatting import brief, clock, label, percent, span, trimmed
from warren.pipeline.report.html_page import BarPart, BarRow, Figure, Table, Tile

if TYPE_CHECKING:
    from warren.pipeline.jobs.dead_letters.summary import Bucket, Burst, Group, Place, Summary
    from warren.pipeline.jobs.job import Run

SHOWN = 12
OTHERS = "others"

REASONS = {
    "expired": "waited longer than a time to live",
    "rejected": "a consumer rejected it",
    "maxlen": "the queue was full",
    "delivery_limit": "was delivered too often",
    "failed": "the handler failed",
    "undecodable": "the body could not be read",
    "unknown_type": "no handler for its type",
    "unknown_content_type": "no decoder for its content type",
    "unknown_content_encoding": "no decoder for its content encoding or character set",
}


def page(summary: Summary, run: Run) -> str:
    """Return the report page of the job as HTML."""
    return html_page.page(
        title=headline(summary),
        lead=lead(summary, run),
        tiles=[
            Tile(f"{summary.deaths:,}", "deaths"),
            Tile(f"{summary.messages:,}", "messages that died"),
            Tile(
                f"{summary.bursts:,}",
                "bursts" if summary.bursts != 1 else "burst",
                "warn" if summary.bursts else "good",
            ),
            Tile(middle(summary), "median time from publishing to death", "late"),
        ],
        sections=list(sections(summary)),
        foot=[
            f"{summary.letters:,} messages read: {summary.repeated:,} repeat a death that another message reports, "
            f"{summary.unexplained:,} have no header about a death.",
            *run.foot,
        ],
    )


def headline(summary: Summary) -> str:
    """Return the page's title: the number of deaths (dead-letterings), and the queue and reason with the most of
    them.
    """
    if not summary.places:
        return "No message died"
    first = summary.places[0]
    most = "all" if first.deaths == summary.deaths else f"{first.deaths:,} of them"
    what = "death" if summary.deaths == 1 else "deaths"
    return f"{summary.deaths:,} {what}: {most} {first.reason} in {first.queue}"


def lead(summary: Summary, run: Run) -> str:
    """Return the introduction below the title: the queue or streams that were read, and the period of the deaths."""
    what = f"Dead letters in {run.place}"
    if summary.first is None or summary.last is None:
        return f"{what}."
    return f"{what}, from {clock(summary.first)} to {clock(summary.last)} UTC."


def middle(summary: Summary) -> str:
    """Return the median delay from publishing to dead-lettering as text; `unknown` if no delay is known."""
    half = summary.after.quantiles.get("0.50")
    return "unknown" if half is None else brief(half)


def sections(summary: Summary) -> Iterable[str]:
    if not summary.deaths:
        yield html_page.notice_section(
            "No dead letters",
            ["No message has a header about a death, neither x-death nor the SDK's."],
            "off",
        )
        return
    tones = {
        reason: TONES[min(at, len(TONES) - 1)] for at, reason in enumerate([*summary.by_reason][: len(TONES)])
    }
    yield places(summary, tones)
    yield timeline(summary, tones)
    yield bursts(summary)
    yield after(summary)
    yield times(summary)
    yield from grouped(summary)


def places(summary: Summary, tones: dict[str, str]) -> str:
    shown = summary.places[:SHOWN]
    description = "; ".join(
        f"{count:,} {reason}" + (f" ({REASONS[reason]})" if reason in REASONS else "")
        for reason, count in [*summary.by_reason.items()][:SHOWN]
    )
    more = len(summary.places) + summary.more_places - len(shown)
    return charts.ranking(
        Ranking(
            title="Deaths by queue and reason",
            description=f"{description}.",
            rows=tuple(
                RankedBar(
                    f"{place.queue}: {place.reason}",
                    (BarPart(place.deaths, tones.get(place.reason, "off"), ""),),
                    f"{place.deaths:,}",
                )
                for place in shown
            ),
            table=Table(
                ("queue and reason", "messages", "50 % within", "90 % within"), tuple(map(place_row, shown))
            ),
            note=f"{more:,} more places are in summary.json and in the table events." if more else "",
        ),
        "places",
    )


def place_row(place: Place) -> tuple[str, ...]:
    late = ("-" if each is None else brief(each) for each in (place.median_after, place.p90_after))
    return (f"{place.queue}: {place.reason}", f"{place.messages:,}", *late)


def timeline(summary: Summary, tones: dict[str, str]) -> str:
    if not summary.timeline:
        return html_page.notice_section(
            "Deaths over time", [f"None of the {summary.deaths:,} deaths has a time."], "off"
        )
    starts = [datetime.fromisoformat(step.at).timestamp() for step in summary.timeline]
    count = round((starts[-1] - starts[0]) / summary.step_seconds) + 1
    at = {
        round((start - starts[0]) / summary.step_seconds): step
        for start, step in zip(starts, summary.timeline, strict=True)
    }
    names = [name for name in (*tones, OTHERS) if any(name in step.deaths for step in summary.timeline)]
    series = tuple(
        Series(
            name,
            tones.get(name, "off"),
            tuple(at[each].deaths.get(name, 0) if each in at else 0 for each in range(count)),
        )
        for name in names
    )
    fullest = max(summary.timeline, key=lambda step: sum(step.deaths.values()))
    return charts.chart(
        Chart(
            title=f"Deaths over time, per {format_duration(summary.step_seconds)}",
            description=f"Most deaths were in the {format_duration(summary.step_seconds)} from {clock(fullest.at)} UTC on: "
            f"{sum(fullest.deaths.values()):,}.",
            labels=tuple(
                label(starts[0] + each * summary.step_seconds, summary.step_seconds) for each in range(count)
            ),
            series=series,
            table=Table(
                ("from (UTC)", *names),
                tuple(
                    (clock(step.at), *(f"{step.deaths.get(name, 0):,}" for name in names))
                    for step in summary.timeline
                ),
            ),
            note="Times are those in the dead letters: in whole seconds where a broker wrote them. For a "
            "message that died in a queue several times for one reason it is the time of the first death.",
        ),
        "timeline",
    )


def bursts(summary: Summary) -> str:
    gap = format_duration(summary.burst_gap_seconds)
    rule = f"at least {summary.burst_least:,} deaths of one reason" + (
        " in one queue" if summary.burst_of == "queue" else ""
    )
    left_out = (
        [f"{summary.deaths_left_out:,} deaths without a time were left out."]
        if summary.deaths_left_out
        else []
    )
    if not summary.bursts:
        line = f"There was no burst. A burst is {rule}, none more than {gap} after the one before."
        return html_page.notice_section("No bursts", [line, *left_out], "good")
    shown = summary.largest_bursts[:SHOWN]
    more = summary.bursts - len(shown)
    notes = [f"A burst is {rule}, none more than {gap} after the one before.", *left_out]
    if more:
        notes.append(f"{more:,} smaller ones are not shown.")
    return charts.ranking(
        Ranking(
            title=f"{summary.bursts:,} {'burst' if summary.bursts == 1 else 'bursts'}",
            description=f"{summary.deaths_in_bursts:,} deaths were in bursts, {summary.deaths_beside_bursts:,} were not.",
            rows=tuple(
                RankedBar(burst_name(burst), (BarPart(burst.deaths, "warn", ""),), f"{burst.deaths:,}")
                for burst in shown
            ),
            table=Table(
                ("start (UTC)", "duration", "per second", "main type"),
                tuple(
                    (
                        clock(burst.began),
                        brief(burst.seconds),
                        f"{burst.deaths / max(burst.seconds, 1):,.1f}",
                        charts.shorten_middle(burst.type or "-", 16),
                    )
                    for burst in shown
                ),
            ),
            note=" ".join(notes),
        ),
        "bursts",
    )


def burst_name(burst: Burst) -> str:
    where = burst.reason if burst.queue is None else f"{burst.queue}: {burst.reason}"
    return f"{where}, {clock(burst.began)}"


def after(summary: Summary) -> str:
    late = summary.after
    if not late.known:
        lines = [
            f"For none of the {summary.deaths:,} deaths both the time of publishing and of the death are known."
        ]
        if late.least_only:
            lines.append(f"{late.least_only:,} had died before; their publishing time is unknown.")
        lines.append(
            "Publish with a UUID version 7 as message id (the SDK does), or set the property timestamp."
        )
        return html_page.notice_section("Time from publishing to death", lines, "off")
    half, slow = late.quantiles["0.50"], late.quantiles["0.90"]
    origins = [f"{count:,} from {PUBLISHED_FROM[name]}" for name, count in late.by_source.items() if count]
    notes = [
        f"Origin of the publishing time: {'; '.join(origins)}.",
        f"{late.within_a_second:,} of the {late.known:,} times are precise to a second, the others to a millisecond.",
    ]
    if late.unknown:
        notes.append(f"For {late.unknown:,} the publishing time is unknown.")
    if late.before_publish:
        notes.append(f"{late.before_publish:,} are dated before publishing: two clocks disagree.")
    spread = [(f"{float(level):.0%} within", brief(value)) for level, value in late.quantiles.items()]
    if late.minimum is not None and late.maximum is not None:
        spread = [("first", brief(late.minimum)), *spread, ("last", brief(late.maximum))]
    rows = trimmed(late.histogram)
    return html_page.figure(
        Figure(
            title="Time from publishing to death",
            description=f"Half of {late.known:,} deaths were within {brief(half)} of publishing, 90 % within "
            f"{brief(slow)}.",
            rows=tuple(
                BarRow(span(bucket, brief), (BarPart(bucket.count, "late", ""),), f"{bucket.count:,}")
                for bucket in rows
            ),
            table=Table(("share of deaths", "after publishing"), tuple(spread)),
            note=" ".join(notes),
        ),
        "after",
    )


def times(summary: Summary) -> str:
    rows = trimmed(summary.times)
    once = summary.times[0].count
    again = summary.messages - once
    return html_page.figure(
        Figure(
            title="Deaths per message",
            description=f"{once:,} messages died once, {again:,} more than once.",
            rows=tuple(
                BarRow(
                    often(bucket),
                    (BarPart(bucket.count, "plain", ""),),
                    f"{bucket.count:,}",
                )
                for bucket in rows
            ),
            table=Table(
                ("deaths", "messages"),
                tuple((often(bucket), f"{bucket.count:,}") for bucket in rows),
            ),
            note="All deaths that a message's letters record, in other queues and for other reasons too, also those from "
            "before it was published again.",
        ),
        "times",
    )


def often(bucket: Bucket) -> str:
    """Format a bucket of the histogram of deaths per message, the number of times that a message was dead-lettered:
    `1`, `4 to 5`, `over 10`.
    """
    if bucket.up_to is None:
        return f"over {bucket.above:g}"
    first = 1 if bucket.above is None else bucket.above + 1
    return f"{first:g}" if first == bucket.up_to else f"{first:g} to {bucket.up_to:g}"


def grouped(summary: Summary) -> Iterable[str]:
    """Yield the HTML of bar charts of the deaths by original exchange and routing key, by message type, and by
    error.
    """
    for title, description, found, name in (
        (
            "Original exchange and routing key",
            "Where the messages had been published.",
            summary.origins,
            "origins",
        ),
        ("Message types", "By the property type.", summary.types, "types"),
        ("Errors", "By the exception that the SDK recorded.", summary.errors, "errors"),
    ):
        if not found or (len(found) == 1 and found[0].words == (None,)):
            continue
        shown = found[:SHOWN]
        yield charts.ranking(
            Ranking(
                title=title,
                description=description,
                rows=tuple(
                    RankedBar(group_name(group), (BarPart(group.deaths, "plain", ""),), f"{group.deaths:,}")
                    for group in shown
                ),
                table=Table(
                    ("", "deaths", "share"),
                    tuple(
                        (group_name(group), f"{group.deaths:,}", percent(group.deaths, summary.deaths))
                        for group in shown
                    ),
                ),
            ),
            name,
        )


def group_name(group: Group) -> str:
    """Return the label of a group's bar: `exchange / routing key`, or the message type or error."""
    if len(group.words) == 2:
        exchange, key = group.words
        return f"{exchange or '(default exchange)'} / {key or '(no key)'}"
    return group.words[0] or "(none)"
