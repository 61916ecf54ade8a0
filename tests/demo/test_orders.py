"""Order file of the demo: valid files, errors, and the sample."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from warren.core.errors import UsageError
from warren.demo.main import main
from warren.demo.orders import read_orders, sample

HEAD = "order_id,status,placed_at,paid_at\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "orders.csv"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return path


def test_reads_paid_and_unpaid_orders_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        HEAD + "b,delivered,2018-01-31T23:50:00,2018-02-01T00:20:00\na,canceled,2018-01-01T00:00:00+02:00,\n",
    )
    paid, unpaid = read_orders(path)
    assert (paid.order_id, paid.delay) == ("b", timedelta(minutes=30))
    assert paid.placed_at == datetime(2018, 1, 31, 23, 50, tzinfo=UTC)
    assert (unpaid.order_id, unpaid.delay) == ("a", None)
    assert unpaid.placed_at == datetime(2017, 12, 31, 22, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "error_text"),
    [
        ("id,status,placed_at,paid_at\n", "line 1: column 'order_id' is missing"),
        ("", "line 1: column 'order_id' is missing"),
        (HEAD, "has no orders"),
        (HEAD + "a,x,2018-01-01T00:00:00,\na,x,2018-01-01T00:00:00,\n", "line 3: order a occurs twice"),
        (HEAD + "a,x,yesterday,\n", "line 2: placed_at is 'yesterday'"),
        (HEAD + "a,x,2018-01-01T00:00:00,soon\n", "line 2: paid_at is 'soon'"),
        (HEAD + "a,x,,\n", "line 2: placed_at is empty"),
        (HEAD + ",x,2018-01-01T00:00:00,\n", "line 2: order_id is empty"),
        (HEAD + "a,x,2018-01-01T00:00:00\n", "line 2: the number of fields differs"),
        (HEAD + "a,x,2018-01-01T00:00:00,,more\n", "line 2: the number of fields differs"),
        (
            HEAD + "a,x,2018-01-02T00:00:00,2018-01-01T00:00:00\n",
            "line 2: order a is paid before it is placed",
        ),
        (HEAD + 'a,"x,2018-01-01T00:00:00,\n', "line 2: unexpected end of data"),
        (HEAD + "a,\udcff,2018-01-01T00:00:00,\n", "is not UTF-8"),
    ],
)
def test_an_error_in_a_file_is_one_line_with_its_line_number(
    tmp_path: Path, text: str, error_text: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read_orders(path)
    assert error_text in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.processes
def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no file .*none\.csv"):
        main(["orders", "--file", str(tmp_path / "none.csv")])


@pytest.mark.parametrize(
    ("arguments", "error_text"),
    [
        (["--timeout", "soon"], "--timeout: 'soon' is no duration"),
        (["--speed", "100000"], "choose a speed that leaves at least 1 s"),
    ],
)
def test_wrong_options_say_what_to_do(arguments: list[str], error_text: str) -> None:
    with pytest.raises(UsageError, match=error_text):
        main(["orders", *arguments])


def test_the_sample_is_deterministic_and_has_every_kind_of_order() -> None:
    orders = sample()
    assert orders == sample()
    assert len(orders) == len({order.order_id for order in orders}) == 2000
    half_hour = timedelta(minutes=30)
    in_time = sum(order.delay is not None and order.delay < half_hour for order in orders)
    never = sum(order.delay is None for order in orders)
    assert 1000 < in_time < 1500
    assert 20 < never < 120
