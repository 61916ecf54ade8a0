"""Message counts, rates and samples of queues, channels, exchanges, virtual hosts and the node."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.blocking_client import Channel
from tests.support.http_client import HttpApi
from tests.support.polling import wait_until

KINDS = {"classic": {}, "quorum": {"x-queue-type": "quorum"}}


def stats(api: HttpApi, path: str) -> dict[str, Any]:
    """Return the counts that are not 0."""
    found = api.get(path).get("message_stats", {})
    return {name: value for name, value in found.items() if isinstance(value, int) and value}


@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_counts_what_happens_to_its_messages(api: HttpApi, channel: Channel, kind: str) -> None:
    api.put("queues/%2f/q", {"durable": True, "arguments": KINDS[kind]})
    channel.confirm()
    for _ in range(5):
        channel.publish("q")
    channel.settled(5)
    assert stats(api, "queues/%2f/q") == {"publish": 5}

    tag = channel.consume("q")
    first, second, third, *_ = channel.deliveries(5)
    channel.ack(first.tag)
    channel.nack(second.tag, requeue=False)
    channel.nack(third.tag, requeue=True)
    channel.deliveries(1)
    channel.cancel(tag)
    assert channel.get("q") is None

    assert stats(api, "queues/%2f/q") == {
        "publish": 5,
        "deliver": 6,
        "deliver_get": 6,
        "redeliver": 1,
        "ack": 1,
        "get_empty": 1,
    }


def test_deliveries_without_acknowledgement_and_basic_get_are_counted_apart(
    api: HttpApi, channel: Channel
) -> None:
    api.put("queues/%2f/q")
    for _ in range(4):
        channel.publish("q")
    got = channel.get("q")
    assert got is not None
    channel.ack(got.tag)
    assert channel.get("q", no_ack=True) is not None
    channel.consume("q", no_ack=True)
    channel.deliveries(2)

    found = stats(api, "queues/%2f/q")
    assert found == {
        "publish": 4,
        "get": 1,
        "get_no_ack": 1,
        "deliver_no_ack": 2,
        "deliver_get": 4,
        "ack": 1,
    }


def test_a_channel_and_an_exchange_count_publishes(api: HttpApi, channel: Channel) -> None:
    api.put("exchanges/%2f/e", {"type": "topic"})
    for name in ("one", "two"):
        api.put(f"queues/%2f/{name}")
        api.ask("POST", f"bindings/%2f/e/e/q/{name}", {"routing_key": "a.*"})
    channel.confirm()
    for key in ("a.1", "a.1", "a.2", "b.1"):
        channel.publish(key, exchange="e")
    channel.settled(4)

    (found,) = api.get("channels")
    assert {name: found["message_stats"][name] for name in ("publish", "confirm", "drop_unroutable")} == {
        "publish": 4,
        "confirm": 4,
        "drop_unroutable": 1,
    }
    assert stats(api, "exchanges/%2f/e") == {"publish_in": 4, "publish_out": 6}


def test_a_stream_counts_what_it_stores_and_delivers(api: HttpApi, channel: Channel) -> None:
    api.put("queues/%2f/s", {"durable": True, "arguments": {"x-queue-type": "stream"}})
    channel.confirm()
    for _ in range(3):
        channel.publish("s")
    channel.settled(3)

    assert stats(api, "queues/%2f/s") == {"publish": 3}


def test_the_totals_keep_what_ended_channels_and_deleted_queues_have_counted(
    api: HttpApi, channel: Channel
) -> None:
    other = channel.connection.channel()
    api.put("queues/%2f/q")
    for _ in range(7):
        other.publish("q")
    other.get("q", no_ack=True)
    other.close()
    api.ask("DELETE", "queues/%2f/q")

    def shown() -> bool:
        found = api.get("overview")["message_stats"]
        return bool(found.get("publish") == 7 and found.get("get_no_ack") == 1)

    wait_until(shown, "the next sample shows the totals")
    assert stats(api, "vhosts/%2f")["publish"] == 7
    churn = api.get("overview")["churn_rates"]
    assert (churn["channel_closed"], churn["queue_created"], churn["queue_deleted"]) == (1, 1, 1)


def test_samples_are_sent_for_the_asked_time(api: HttpApi, channel: Channel) -> None:
    api.put("queues/%2f/q")
    channel.publish("q")
    wait_until(lambda: api.get("overview")["queue_totals"].get("messages") == 1, "a sample has been taken")

    found = api.get("queues/%2f/q?lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5")

    samples = found["messages_details"]["samples"]
    assert len(samples) == 12
    assert [each["timestamp"] for each in samples] == [
        samples[0]["timestamp"] - 5000 * ago for ago in range(12)
    ]
    assert samples[0]["sample"] == 1
    assert found["message_stats"]["publish_details"]["samples"][0]["sample"] == 1
    assert api.ask("GET", "queues/%2f/q?lengths_age=60&lengths_incr=x").status == 400
    assert api.ask("GET", "queues/%2f/q?lengths_age=999999&lengths_incr=1").status == 400
