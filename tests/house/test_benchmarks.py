"""docs/benchmarks.md: the generator's output for the stored results, with a verdict for every bound."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks.comparison import __main__ as comparison
from benchmarks.comparison import page
from benchmarks.comparison.bar_chart import draw
from benchmarks.comparison.results import Machine, Results, Sample
from benchmarks.comparison.servers import COMPILED, LAVINMQ, LAVINMQ_UNSYNCED, PLAIN, RABBITMQ
from benchmarks.comparison.tables import claims_table, lavinmq_table, quantity_table, workload_table
from benchmarks.comparison.workloads import (
    BULK_WORKLOADS,
    DISTINCT_WORKLOADS,
    FULL_WORKLOADS,
    QUANTITIES,
    WORKLOADS,
)


def sample(per_second: float, microseconds: float = 1.0, p99: float = 1.0) -> Sample:
    return Sample(per_second, microseconds, 0.1, p99, 0.5, 40.0)


def results(**loads: dict[str, list[Sample]]) -> Results:
    machine = Machine("a processor", 2, 8.0, "6.1", 3e9, 1000.0)
    versions = {PLAIN: "1", COMPILED: "1", RABBITMQ: "3.10.8"}
    named = {key.replace("_", "-"): value for key, value in loads.items()}
    return Results("2026-01-01", "abc", machine, versions, 3, 3.0, 1.0, named)


def test_the_page_is_generated_from_the_stored_results() -> None:
    text, figure = page.generated()
    assert page.PAGE.read_text() == text, "python -m benchmarks.comparison.page"
    assert page.FIGURE.read_text() == figure, "python -m benchmarks.comparison.page"
    kept = Results.load(page.RESULTS)
    assert kept.date in text
    assert all(version in text for version in kept.versions.values())
    keys = set(kept.loads)
    # The loads like those of applications are newer than the figures.
    assert keys - {row.key for row in DISTINCT_WORKLOADS} == {row.key for row in BULK_WORKLOADS}, (
        "only a part was measured and stored; run make bench"
    )


def test_loads_like_those_of_applications_head_the_page_once_they_are_measured() -> None:
    bulk = {COMPILED: [sample(300)], RABBITMQ: [sample(100)]}
    text = page.text(results(confirmed=bulk), None)
    assert "Loads like those of applications" not in text
    text = page.text(results(confirmed=bulk, mixed={COMPILED: [sample(30)], RABBITMQ: [sample(10)]}), None)
    mixed, equal = text.index("\n| mixed | "), text.index("\n| confirmed, acknowledged | ")
    assert text.index("## Loads like those of applications") < mixed < text.index("## Bulk loads") < equal


def test_the_page_shows_whether_a_bound_holds_or_falls_short() -> None:
    found = results(
        confirmed={COMPILED: [sample(300, 4.0), sample(200, 6.0), sample(100, 6.0)], RABBITMQ: [sample(100)]},
        window_1={COMPILED: [sample(149)], PLAIN: [sample(10)], RABBITMQ: [sample(100)]},
        rate_1000={COMPILED: [sample(1000, p99=0.5)], RABBITMQ: [sample(1000, p99=1.0)]},
    )
    lines = workload_table(found, WORKLOADS).splitlines()[2:]
    assert "| 200 (100-300) | 2.00 | 6.0 (4.0-6.0) |" in lines[0]
    assert lines[0].endswith("| 2 times: holds, 5 µs: **falls short** |")
    assert lines[2].endswith("| 1.5 times: **falls short** |")
    assert [line.endswith("|  |") for line in lines] == [False, True, False, True, True, False, True]
    assert "| p99 0.50 |" in lines[5]
    assert lines[5].endswith("| p99 0.5: holds |")


def test_the_table_compares_warren_with_lavinmq() -> None:
    found = results(
        confirmed={
            COMPILED: [sample(300, 1.0)],
            LAVINMQ: [sample(100, 4.0)],
            LAVINMQ_UNSYNCED: [sample(200, 2.0)],
        },
        rate_1000={COMPILED: [sample(1000, p99=0.5)], LAVINMQ: [sample(1000, p99=1.0)]},
    )
    assert lavinmq_table(found, BULK_WORKLOADS) == ""
    found.versions |= {LAVINMQ: "2.9.1", LAVINMQ_UNSYNCED: "2.9.1"}
    lines = lavinmq_table(found, BULK_WORKLOADS).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2] == "| confirmed, acknowledged | 3.00 | 0.25 | 1.50 | 0.50 |"
    assert "| latency at 1,000 per second | p99 0.50 | 1.00 | – | – |" in lines
    assert "| 1,000 queues in turn | – | – | – | – |" in lines


def test_the_tables_of_quantities_and_claims() -> None:
    found = results(
        confirmed={COMPILED: [sample(100)], RABBITMQ: [sample(60)]},
        persistent={COMPILED: [sample(50)], RABBITMQ: [sample(20)]},
    )
    found.quantities = {"start": {COMPILED: [100.0, 301.0, 400.0], RABBITMQ: [5000.0]}}
    line = quantity_table(found, QUANTITIES).splitlines()[-1]
    assert line.endswith("| – | 301 ms | 5,000 ms | 300 ms: **falls short** |")
    full = results(by_headers={RABBITMQ: [sample(10)]})
    literature_claims = claims_table(found, full)
    assert "| a factor of 3.0 | a factor of 2.0 |" in literature_claims
    assert "| headers 10 | – |" in literature_claims


def test_the_figure_is_a_valid_svg() -> None:
    found = results(confirmed={COMPILED: [sample(300)], RABBITMQ: [sample(100)]})
    drawn = draw(found)
    root = ElementTree.fromstring(drawn)
    bars = [each for each in root.iter() if each.tag.endswith("rect") and each.get("rx")]
    # Three brokers in the legend; two bars of rates, two of processor time.
    assert len(bars) == 3 + 2 + 2
    widths = [float(each.get("width", "0")) for each in bars[3:5]]
    assert abs(widths[0] / widths[1] - 3) < 0.05


def test_the_keys_of_rows_and_quantities_are_unique() -> None:
    keys = [row.key for row in WORKLOADS + FULL_WORKLOADS] + [one.key for one in QUANTITIES]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(("full", "names"), [((), False), (("--full",), True)])
def test_an_unknown_row_is_an_error_that_lists_the_known_rows(
    full: tuple[str, ...], names: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of `make bench-full` are listed only with `--full`."""
    monkeypatch.setattr("sys.argv", ["comparison", "--rows", "confirmed,nothing", *full])
    assert comparison.main() == 2
    error, known = capsys.readouterr().err.split("; there are ")
    assert error == "bench: unknown row nothing"
    assert known.startswith("mixed, mixed-persistent, mixed-batched, confirmed, unconfirmed, ")
    assert ("window-1-persistent" in known) == names
    assert known.endswith("; more with make bench-full\n") != names
