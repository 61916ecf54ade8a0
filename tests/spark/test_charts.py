"""Charts over time and rankings: everything is inside the drawing, has a name, and is visible."""

from __future__ import annotations

import pytest

from tests.spark.test_html_page import read
from warren.pipeline.report import charts, html_page
from warren.pipeline.report.charts import Chart, LimitLine, RankedBar, Ranking, Series
from warren.pipeline.report.html_page import NARROW, WIDE, BarPart, BarRow, Figure, Table

TABLE = Table(("at", "n"), (("a", "1"),))
LONG = "orders.of.a.shop.that.has.a.very.long.name.for.each.of.its.many.queues.eu-west-1.blue"


def example_chart(*, lines: bool) -> Chart:
    return Chart(
        title="t",
        description="s <b>",
        labels=tuple(f"12:{minute:02}" for minute in range(60)),
        series=(
            Series("waiting <i>", "late", (*map(float, range(59)), 900.0)),
            Series("held", "plain", (None, 5.0, *[0.5] * 58)),
        ),
        table=TABLE,
        lines=lines,
        levels=(LimitLine(1000, "limit"),),
    )


@pytest.mark.parametrize("lines", [True, False])
def test_all_shapes_of_a_chart_are_inside_its_view_box(lines: bool) -> None:
    what = example_chart(lines=lines)
    for width in (charts.BROAD, NARROW):
        reader = read(charts.time_chart_svg(what, width, "c"))
        (_, size), *_ = [each for each in reader.tags if each[0] == "svg"]
        _, _, wide, high = (float(number) for number in (size["viewbox"] or "").split())
        assert wide == width
        drawn = 0
        for tag, attributes in reader.tags:
            if tag == "rect":
                left, top = float(attributes["x"] or 0), float(attributes["y"] or 0)
                assert 0 <= left <= left + float(attributes["width"] or 0) <= wide
                assert 0 <= top <= top + float(attributes["height"] or 0) <= high
                assert float(attributes["height"] or 0) >= 1, "what is there is seen"
                drawn += 1
            if tag == "polyline":
                for point in (attributes["points"] or "").split():
                    x, y = map(float, point.split(","))
                    assert 0 <= x <= wide
                    assert 0 <= y <= high
                drawn += 1
            if tag == "text":
                assert 0 <= float(attributes["x"] or 0) <= wide
        assert drawn == (2 if lines else 59 + 59)


def test_a_line_is_interrupted_where_values_are_missing() -> None:
    what = Chart(
        "t", "s", ("1", "2", "3", "4"), (Series("n", "good", (1.0, None, 2.0, 3.0)),), TABLE, lines=True
    )
    tags = [tag for tag, _ in read(charts.time_chart_svg(what, NARROW, "c")).tags]
    assert tags.count("circle") == 1, "a value alone"
    assert tags.count("polyline") == 1


def test_sections_have_names_and_descriptions_and_escape_markup() -> None:
    ranking = Ranking("t", "s", (RankedBar("<script>", (BarPart(3, "warn", ""),), "3"),), TABLE)
    html = charts.chart(example_chart(lines=True), "one") + charts.ranking(ranking, "two")
    reader = read(html)
    ids = [attributes["id"] for tag, attributes in reader.tags if tag in ("title", "desc")]
    assert len(set(ids)) == len(ids) == 8
    assert not {"script", "b", "i"} & {tag for tag, _ in reader.tags}
    assert sum(tag == "table" for tag, _ in reader.tags) == 2


def test_long_names_are_shortened_in_the_middle_and_numbers_fit() -> None:
    rows = (
        RankedBar(LONG, (BarPart(900, "late", ""), BarPart(100, "plain", "")), "900 + 100"),
        RankedBar("b", (), "0"),
    )
    for width in (WIDE, NARROW):
        html = charts.ranking_svg(Ranking("t", "s", rows, TABLE), width, "r")
        ends = [
            float(attributes["x"] or 0) + float(attributes["width"] or 0)
            for tag, attributes in read(html).tags
            if tag == "rect"
        ]
        assert max(ends) <= width - len("900 + 100") * html_page.LETTER
    assert charts.shorten_middle(LONG, 20) == "orders.of.a.s…1.blue"
    assert charts.shorten_middle("short", 20) == "short"


def test_wide_labels_are_placed_above_their_bars() -> None:
    rows = (
        BarRow("published, and not seen again", (BarPart(5, "warn", ""),), "5"),
        BarRow("kept", (BarPart(1, "good", ""),), "1"),
    )
    what = Figure("t", "s", rows, TABLE)
    bars = [
        attributes for tag, attributes in read(html_page.bars_svg(what, NARROW, "f")).tags if tag == "rect"
    ]
    assert [attributes["x"] for attributes in bars] == ["0.0", "0.0"]
    assert float(bars[0]["width"] or 0) > 250
    (beside, _) = [
        attributes for tag, attributes in read(html_page.bars_svg(what, WIDE, "f")).tags if tag == "rect"
    ]
    assert float(beside["x"] or 0) > 200


def test_a_number_and_its_unit_are_joined_by_a_no_break_space() -> None:
    assert html_page.keep_unit_with_number("1 h 8 min") == "1\u00a0h 8\u00a0min"
    assert html_page.keep_unit_with_number("40.3 %") == "40.3\u00a0%"
    assert html_page.keep_unit_with_number("orders, 12 of 13") == "orders, 12\u00a0of 13"


def test_a_scale_ends_at_a_round_number_above_the_highest_value() -> None:
    for highest in (0.3, 1, 7, 99, 101, 12_345, 9e6):
        ticks = charts.scale(highest)
        assert ticks[0] == 0
        assert ticks[-1] >= highest
        assert 2 <= len(ticks) <= 6
    assert [charts.short_number(value) for value in (0, 950, 2500, 1.5e6, 2e9)] == [
        "0",
        "950",
        "2.5k",
        "1.5M",
        "2G",
    ]
