"""Report page of the job `order-timeouts`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from warren.pipeline.durations import format_duration
from warren.pipeline.jobs.order_timeouts.facts import CONTRADICTIONS
from warren.pipeline.report import html_page
from warren.pipeline.report.formatting import percent, span, trimmed
from warren.pipeline.report.html_page import BarPart, BarRow, Divider, Figure, Table, Tile

if TYPE_CHECKING:
    from warren.pipeline.jobs.job import Run
    from warren.pipeline.jobs.order_timeouts.summary import Summary

LEGEND = (("good", "paid in time"), ("late", "paid late, refunded"), ("off", "cancelled, never paid"))


def page(summary: Summary, run: Run) -> str:
    """Return the report page of the job as HTML."""
    timeout = format_duration(summary.timeout_seconds)
    share = percent(summary.paid_in_time, summary.orders)
    return html_page.page(
        title=f"{share} of the orders were paid within {timeout}",
        lead=f"{summary.orders:,} orders from the messages in {run.place}. Orders that were not paid within {timeout}"
        " were cancelled; later payments were refunded.",
        tiles=[
            Tile(f"{summary.paid_in_time:,}", "paid in time", "good"),
            Tile(f"{summary.paid_late:,}", "paid late, refunded", "late"),
            Tile(f"{summary.cancelled:,}", "cancelled, never paid", "off"),
            Tile(f"{in_doubt(summary):,}", "in doubt", "warn" if in_doubt(summary) else "plain"),
        ],
        sections=[
            outcome_figure(summary),
            *doubt_notices(summary),
            delay_figure(summary),
            recount_figure(summary),
        ],
        foot=[
            run.foot[0],
            f"{summary.messages.read:,} messages, {summary.messages.duplicates:,} of them repeated, "
            f"{summary.messages.unreadable:,} unreadable, {summary.messages.of_other_types:,} of other types."
            + (f" {summary.undecided:,} orders are not decided yet." if summary.undecided else ""),
            run.foot[1],
        ],
    )


def outcome_figure(summary: Summary) -> str:
    values = {
        "good": (summary.paid_in_time, "paid in time"),
        "late": (summary.paid_late, "paid late, refunded"),
        "off": (summary.cancelled, "cancelled, never paid"),
        "warn": (in_doubt(summary), "in doubt"),
    }
    shown = {tone: each for tone, each in values.items() if each[0] or tone != "warn"}
    return html_page.figure(
        Figure(
            title="Outcomes of the orders",
            description="; ".join(
                f"{count:,} {name} ({percent(count, summary.orders)})" for count, name in shown.values()
            )
            + ".",
            rows=(
                BarRow(
                    "",
                    tuple(
                        BarPart(count, tone, percent(count, summary.orders))
                        for tone, (count, _) in shown.items()
                    ),
                ),
            ),
            legend=tuple((tone, name) for tone, (_, name) in shown.items()),
            fills_width=True,
            table=Table(
                ("outcome", "orders", "share"),
                tuple((name, f"{count:,}", percent(count, summary.orders)) for count, name in shown.values()),
            ),
        ),
        "outcomes",
    )


def doubt_notices(summary: Summary) -> Iterable[str]:
    """Yield notices about orders with contradictory messages, without times, or with an outcome that differs from their
    times.
    """
    lines = [
        f"{count:,} {plural(count)} {CONTRADICTIONS[name]}: {example_ids(summary, name, count)}"
        for name, count in summary.contradictions.items()
        if count
    ]
    if lines:
        yield html_page.notice_section("Orders whose messages contradict each other", lines, "warn")
    if count := summary.recount[0].without_times:
        line = (
            f"{count:,} {plural(count)} without a readable time of placing or, if paid, of payment: "
            "their delay is unknown, and they are left out of the comparison of timeouts."
        )
        yield html_page.notice_section("Orders without times", [line], "warn")
    if count := summary.decided_otherwise:
        line = f"{count:,} {plural(count)}: {example_ids(summary, 'decided_otherwise', count)}"
        why = (
            "A payment close to the timeout is judged when its message arrives, and a broker or a service that was down "
            "delays that. The comparison of timeouts below uses the times in the orders."
        )
        yield html_page.notice_section(
            "Outcomes that differ from the times in the orders", [line, why], "late"
        )


def delay_figure(summary: Summary) -> str:
    delay, timeout = summary.delay, summary.timeout_seconds
    late = False
    rows: list[BarRow | Divider] = []
    for bucket in trimmed(delay.histogram):
        if not late and bucket.above is not None and bucket.above >= timeout:
            rows.append(Divider(f"timeout {format_duration(timeout)}"))
            late = True
        rows.append(
            BarRow(
                span(bucket), (BarPart(bucket.count, "late" if late else "good", ""),), f"{bucket.count:,}"
            )
        )
    middle, slow = delay.quantiles.get("0.50"), delay.quantiles.get("0.90")
    description = (
        f"Half of the {delay.payments:,} payments came within {format_duration(middle)} of the order, 90 % within "
        f"{format_duration(slow)}."
        if middle is not None and slow is not None
        else "No order has both a time of placing and a time of payment."
    )
    spread = [
        (f"{float(level):.0%} within", format_duration(value)) for level, value in delay.quantiles.items()
    ]
    if delay.minimum is not None and delay.maximum is not None:
        spread = [
            ("first", format_duration(delay.minimum)),
            *spread,
            ("last", format_duration(delay.maximum)),
        ]
    if delay.before_order:
        spread.append(("dated before their order", f"{delay.before_order:,}"))
    return html_page.figure(
        Figure(
            title="Time from order to payment",
            description=description,
            rows=tuple(rows),
            table=Table(("share of payments", "time after the order"), tuple(spread)),
            extra_table=Table(
                ("time after the order", "payments"),
                tuple((span(bucket), f"{bucket.count:,}") for bucket in delay.histogram),
            ),
            legend=LEGEND[:2],
            note="Each row covers the time from the end of the row above to its own; the ranges grow from minutes to days.",
        ),
        "delays",
    )


def recount_figure(summary: Summary) -> str:
    rows, cells, actual = [], [], None
    without = (("warn", "times unknown"),) if summary.recount[0].without_times else ()
    legend = (*LEGEND, *without)
    for at, each in enumerate(summary.recount):
        counts = (each.paid_in_time, each.paid_late, each.never_paid, each.without_times)[: len(legend)]
        total = sum(counts)
        is_actual = each.timeout_seconds == summary.timeout_seconds
        actual = at if is_actual else actual
        parts = tuple(
            BarPart(count, tone, percent(count, total))
            for count, (tone, _) in zip(counts, legend, strict=True)
        )
        rows.append(BarRow(format_duration(each.timeout_seconds), parts, emphasised=is_actual))
        cells.append(
            (
                format_duration(each.timeout_seconds) + (" (now)" if is_actual else ""),
                *(f"{count:,}" for count in counts),
            )
        )
    first, last = summary.recount[0], summary.recount[-1]
    return html_page.figure(
        Figure(
            title="Outcomes with other timeouts",
            description="Counted by the times in the orders: "
            f"{first.paid_in_time:,} would be paid in time with a timeout of {format_duration(first.timeout_seconds)}, "
            f"{last.paid_in_time:,} with {format_duration(last.timeout_seconds)}.",
            rows=tuple(rows),
            legend=legend,
            fills_width=True,
            table=Table(
                ("timeout", "in time", "late", "never paid", *(name for _, name in without)),
                tuple(cells),
                emphasised=actual,
            ),
            note="Assumes that customers would have paid at the same times. A payment exactly at the timeout is in time.",
        ),
        "recounts",
    )


def in_doubt(summary: Summary) -> int:
    """Return the number of orders whose messages contradict each other."""
    return sum(summary.contradictions.values())


def example_ids(summary: Summary, name: str, count: int) -> str:
    """Return some order ids as text, with an ellipsis if there are more.

    :param name: a contradiction (key of `facts.CONTRADICTIONS`), or `decided_otherwise` for orders whose outcome
        contradicts their times
    :param count: number of such orders
    """
    ids = summary.examples.get(name, ())
    return ", ".join(ids) + (", …" if count > len(ids) else "")


def plural(count: int) -> str:
    return "order" if count == 1 else "orders"
