"""Report page: self-contained, accessible, and safe from markup in messages."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from warren.pipeline.durations import format_duration, parse
from warren.pipeline.jobs.job import Run
from warren.pipeline.jobs.order_timeouts.page import page
from warren.pipeline.jobs.order_timeouts.summary import Bucket, Delay, Messages, Recount, Summary
from warren.pipeline.report import html_page
from warren.pipeline.report.formatting import percent

VOID = {"meta", "line", "rect"}


class Reader(HTMLParser):
    """HTML parser that checks balanced tags, and keeps what tests need."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


RUN = Run("order-timeouts", "amqp://guest:***@localhost/", ("orders.audit",), None, False, 9.5)


def summary(order_id: str = "42") -> Summary:
    return Summary(
        timeout_seconds=1800,
        messages=Messages(20, 1, 0, 0, 0, by_type={"order_placed": 7}, more_types=0),
        orders=7,
        paid_in_time=4,
        paid_late=1,
        cancelled=1,
        contradictions={"open": 1, "paid_and_cancelled": 0},
        undecided=0,
        decided_otherwise=1,
        examples={"open": (order_id,), "decided_otherwise": ("43",)},
        delay=Delay(
            payments=5,
            before_order=0,
            minimum=0,
            maximum=90_000,
            mean=900.0,
            quantiles={"0.50": 720.0, "0.90": 80_000.0},
            histogram=(Bucket(None, 1800, 4), Bucket(1800, 86_400, 0), Bucket(86_400, None, 1)),
        ),
        recount=(Recount(600, 2, 3, 1, 0), Recount(1800, 4, 1, 1, 0)),
    )


def test_every_figure_has_a_title_a_description_and_a_table() -> None:
    reader = read(page(summary(), RUN))
    drawings = [attributes for tag, attributes in reader.tags if tag == "svg"]
    assert len(drawings) == 6, "three figures, each for a desk and for a phone"
    ids = [
        attributes["id"] for tag, attributes in reader.tags if tag in ("title", "desc") and "id" in attributes
    ]
    assert len(set(ids)) == len(ids) == 12
    for attributes in drawings:
        assert attributes["role"] == "img"
        assert set((attributes["aria-labelledby"] or "").split()) <= set(ids)
    assert sum(tag == "table" for tag, _ in reader.tags) >= 3


def test_the_page_is_self_contained() -> None:
    text = page(summary(), RUN)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in read(text).tags}
    for word in ("http:", "https:", "url(", "@import"):
        assert word not in text
    assert "prefers-color-scheme:dark" in text
    assert 'name="viewport"' in text


def test_message_texts_are_escaped() -> None:
    text = page(summary("<script>alert(1)</script>"), RUN)
    assert "script" not in {tag for tag, _ in read(text).tags}
    assert "&lt;script&gt;alert(1)" in text


def test_the_page_shows_the_title_and_the_contradictions() -> None:
    text = page(summary(), RUN)
    assert "57.1 % of the orders were paid within 30 min" in text
    assert "1 order placed, and neither paid nor cancelled: 42" in text
    assert "Outcomes that differ from the times in the orders" in text
    assert ":***@" in text


def test_a_bar_fits_its_drawing() -> None:
    rows = tuple(
        html_page.BarRow("x" * size, (html_page.BarPart(size * 100, "good", ""),), "9" * size)
        for size in (1, 8)
    )
    what = html_page.Figure("t", "s", rows, html_page.Table(("a",), (("b",),)))
    for width in (html_page.WIDE, html_page.NARROW):
        ends = [
            float(attributes["x"] or 0) + float(attributes["width"] or 0)
            for tag, attributes in read(html_page.bars_svg(what, width, "f")).tags
            if tag == "rect"
        ]
        assert max(ends) <= width


def test_percentages_round_to_0_and_100_only_if_exact() -> None:
    assert [percent(*each) for each in ((0, 9), (1, 99_999), (1, 3), (99_998, 99_999), (9, 9), (0, 0))] == [
        "0 %",
        "0.1 %",
        "33.3 %",
        "99.9 %",
        "100 %",
        "0 %",
    ]


def test_durations_are_parsed_and_formatted() -> None:
    assert [parse(text).total_seconds() for text in ("90s", "30m", "2h", "1d", "1h30m")] == [
        90,
        1800,
        7200,
        86_400,
        5400,
    ]
    assert [format_duration(seconds) for seconds in (0, 59.6, 90, 1800, 5400, 86_399, 2_822_580)] == [
        "0 s",
        "1 min",
        "1 min 30 s",
        "30 min",
        "1 h 30 min",
        "24 h",
        "32 d 16 h",
    ]
    for text in ("", "30", "3x", "m", "-5m", "250ms"):
        with pytest.raises(ValueError, match=r"is no duration|has no unit"):
            parse(text)
