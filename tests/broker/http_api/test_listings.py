"""Lists of the HTTP API: pages, filters and orders, as RabbitMQ 4.3.6 computes them (rabbit_mgmt_util, reply_list)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.blocking_client import Channel
from tests.support.http_client import HttpApi


@pytest.fixture
def bound(api: HttpApi) -> HttpApi:
    """Return a client of a broker with queues in two virtual hosts, whose bindings have few different routing keys."""
    api.put("vhosts/v")
    for path in ("%2f/b", "%2f/a", "v/c"):
        api.put(f"queues/{path}")
    for vhost, queue, key in (("%2f", "a", "y"), ("%2f", "b", "x"), ("%2f", "a", "x"), ("v", "c", "x")):
        found = api.ask("POST", f"bindings/{vhost}/e/amq.topic/q/{queue}", {"routing_key": key})
        assert found.status == 201
    return api


def ends(rows: list[dict[str, Any]]) -> list[str]:
    """Return destination and routing key of the bindings to `amq.topic`."""
    return [f"{row['destination']} {row['routing_key']}" for row in rows if row["source"]]


def test_bindings_are_ordered_by_what_they_connect(bound: HttpApi) -> None:
    assert ends(bound.get("bindings")) == ["a x", "a y", "b x", "c x"]
    assert ends(bound.get("bindings?sort_reverse=true")) == ["c x", "b x", "a y", "a x"]


def test_rows_of_the_same_value_stay_in_the_usual_order_or_its_reverse(bound: HttpApi) -> None:
    assert ends(bound.get("bindings?sort=routing_key")) == ["a x", "b x", "c x", "a y"]
    assert ends(bound.get("bindings?sort=routing_key&sort_reverse=true")) == ["a y", "c x", "b x", "a x"]
    for path in ("sort=durable", "sort=auto_delete&columns=name,auto_delete"):
        assert [row["name"] for row in bound.get(f"queues?{path}")] == ["a", "b", "c"]
        assert [row["name"] for row in bound.get(f"queues?{path}&sort_reverse=true")] == ["c", "b", "a"]


def test_bindings_have_no_names_to_order_or_filter_by(bound: HttpApi) -> None:
    usual = bound.get("bindings")
    for query in ("sort=name", "name=a", "page=1&page_size=1&name=a&use_regex=true", "page=x", "page_size=x"):
        assert bound.get(f"bindings?{query}") == usual
    assert bound.get("bindings?sort=name&sort_reverse=true") == usual[::-1]


def test_bindings_have_the_columns_that_a_request_names(bound: HttpApi) -> None:
    rows = bound.get("bindings/v?columns=destination,properties_key,none")
    assert rows == [{"destination": "c", "properties_key": key} for key in ("c", "x")]


@pytest.mark.parametrize(
    "query", ["page_size=x", "page_size=", "page=1&page_size=+5%20", "page=1_0", "page="]
)
def test_a_page_that_is_no_number_is_refused_even_without_the_other(bound: HttpApi, query: str) -> None:
    found = bound.ask("GET", f"queues?{query}")
    assert (found.status, found.body) == (
        400,
        {"error": "bad_request", "reason": "Pagination parameters are invalid"},
    )


def test_a_page_size_out_of_range_is_ignored_without_a_page(bound: HttpApi) -> None:
    assert len(bound.get("queues?page_size=0&columns=name")) == 3


@pytest.mark.parametrize("page", ["", "page=1&"])
def test_a_long_regular_expression_is_refused(bound: HttpApi, page: str) -> None:
    found = bound.ask("GET", f"queues?{page}use_regex=true&name={'a' * 1025}")
    assert (found.status, found.body) == (
        400,
        {"error": "invalid_pagination_parameters", "reason": "name filter regex is too long"},
    )
    assert bound.ask("GET", f"queues?{page}name={'a' * 1025}").status == 200


@pytest.mark.parametrize(("kind", "status"), [("classic", "blocked"), ("quorum", "up")])
def test_a_consumer_of_a_classic_queue_at_its_prefetch_limit_is_blocked(
    api: HttpApi, channel: Channel, kind: str, status: str
) -> None:
    api.put("queues/%2f/q", {"durable": True, "arguments": {"x-queue-type": kind}})
    channel.qos(2)
    channel.consume("q")
    for _ in range(3):
        channel.publish("q")
    first, _ = channel.deliveries(2)

    assert [each["activity_status"] for each in api.get("consumers")] == [status]

    channel.ack(first.tag)
    channel.deliveries(1)
    channel.qos(10)
    channel.consume("q")
    assert api.get("consumers")[1]["activity_status"] == "up"
