"""Message counts, rates and samples of queues, channels, exchanges, virtual hosts and the node."""

from __future__ import annotations

from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.broker.http_api.conftest import collector_of
from tests.support.blocking_client import Channel, Connection
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.polling import wait_until
from warren.broker import BrokerConfig
from warren.broker.management.statistics.collector import LENGTHS, QUEUE_COUNTERS
from warren.broker.management.statistics.series import COMPACT, TICK, Series
from warren.broker.model.vhost.vhost import VirtualHost

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


def vhost_of(served: InProcessBroker) -> VirtualHost:
    assert served.broker is not None
    return served.broker.virtual_hosts.declarations_of("/").vhost


def test_samples_of_a_day_with_large_numbers_are_sent(served: InProcessBroker, api: HttpApi) -> None:
    api.put("queues/%2f/q")
    collector = collector_of(served)
    series = Series(len(LENGTHS), len(QUEUE_COUNTERS), COMPACT)
    step = COMPACT[-1].ticks
    known: dict[int, int] = {}

    def record_a_day() -> None:
        now = collector.now()
        for tick in range(now - 18_000, now + 1, 40):
            known[tick // step] = 100_000 + tick % 1000
            published = (tick - now + 18_000) * 10_000
            series.record(tick, [100_000 + tick % 1000, 0, 0, published, *[0] * 8])
        collector.queues[vhost_of(served).queues[b"q"]] = series

    served.call(record_a_day)
    found = api.get("queues/%2f/q?lengths_age=86400&lengths_incr=3600")

    samples = found["messages_details"]["samples"]
    assert len(samples) == 24
    for sample in samples[1:]:
        row = round(sample["timestamp"] / 1000 / TICK) // step
        assert sample["sample"] == known[row]


def steps_of(served: InProcessBroker, work: Callable[[], Generator[None, None, Any]]) -> int:
    """Return the number of steps of some work, between which the event loop may serve clients."""
    return served.call(lambda: sum(1 for _ in work()))


def test_a_sample_of_many_connections_without_a_channel_is_taken_in_steps(
    served: InProcessBroker, api: HttpApi
) -> None:
    collector = collector_of(served)
    before = steps_of(served, collector.sample_in_steps)
    opened = [Connection(served.url) for _ in range(20)]
    assert steps_of(served, collector.sample_in_steps) >= before + 20
    for each in opened:
        each.close()
    wait_until(lambda: not api.get("connections"), "the connections are closed")


def test_objects_that_are_gone_are_forgotten_in_steps(
    served: InProcessBroker, api: HttpApi, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warren.broker.management.statistics.collector.LOOKED_AT_ONCE", 1)
    collector = collector_of(served)
    channel.confirm()
    for number in range(10):
        api.put(f"exchanges/%2f/e{number}", {"type": "fanout"})
        api.put(f"queues/%2f/q{number}")
        api.ask("POST", f"bindings/%2f/e/e{number}/q/q{number}", {})
        channel.publish("", exchange=f"e{number}")
    channel.settled(10)
    steps_of(served, collector.sample_in_steps)
    assert (len(collector.queues), len(collector.exchanges)) == (10, 10)

    for number in range(4):
        api.ask("DELETE", f"queues/%2f/q{number}")
        api.ask("DELETE", f"exchanges/%2f/e{number}")

    assert steps_of(served, collector._forget_in_steps) >= 10 + 10
    assert {queue.name for queue in collector.queues} == {b"q%d" % number for number in range(4, 10)}
    assert {each.name for each in collector.exchanges} == {b"e%d" % number for number in range(4, 10)}


def test_the_utilisation_of_many_queues_is_sampled_in_steps(
    served: InProcessBroker, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warren.broker.management.consumer_utilisation.STEP", 1)
    for number in range(10):
        channel.consume(channel.declare(f"q{number}"))
    assert served.broker is not None
    management = served.broker._management
    assert management is not None
    utilisation = management.utilisation
    served.call(utilisation.stop)

    assert steps_of(served, utilisation.sample_in_steps) >= 10
    assert utilisation.of(vhost_of(served).queues[b"q9"]) == 1


def test_the_overview_counts_consumers_of_many_queues_in_slices(
    served: InProcessBroker, api: HttpApi, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        channel.consume(channel.declare(f"q{number}"))
    monkeypatch.setattr("warren.broker.management.time_slices.SLICE_SECONDS", 0.0)
    collector_of(served)
    turns: list[None] = []

    def count_turns() -> None:
        loop: Any = served._loop
        run = loop._run_once

        def counted() -> None:
            turns.append(None)
            run()

        loop._run_once = counted

    served.call(count_turns)
    assert api.get("overview")["object_totals"]["consumers"] == 30
    assert len(turns) >= 30


def test_a_refused_declaration_of_a_queue_is_not_counted(api: HttpApi) -> None:
    api.put("queues/%2f/q")
    api.put("queues/%2f/q")
    assert api.ask("PUT", "queues/%2f/q", {"durable": True}).status == 400
    assert api.ask("PUT", "queues/%2f/bad", {"arguments": {"x-max-length": -1}}).status == 400

    churn = api.get("overview")["churn_rates"]
    assert (churn["queue_declared"], churn["queue_created"]) == (2, 1)


def test_a_deleted_queue_that_was_at_rest_since_the_start_is_forgotten(tmp_path: Path) -> None:
    config = BrokerConfig(management_port=0, handshake_timeout=PATIENCE, login_failure_delay=0)
    with InProcessBroker(tmp_path / "data", config=config) as broker:
        with Connection(broker.url) as connection:
            channel = connection.channel()
            channel.declare("q", durable=True)
            channel.publish("q", b"persistent", delivery_mode=2)
            assert channel.get("q", no_ack=True) is not None
        broker.restart()
        assert broker.broker is not None
        collector = broker.broker._collector
        assert collector is not None
        assert [queue.name for queue in collector._restored] == [b"q"]

        with Connection(broker.url) as connection:
            connection.channel().delete("q")
        broker.call(lambda: list(collector.sample_in_steps()))

        assert not collector._restored


@pytest.mark.parametrize(
    "path",
    [
        "messages",
        "messages_ready",
        "messages_unacknowledged",
        "type",
        "message_stats.publish_details.rate",
        "message_stats.deliver_get_details.rate",
        "message_stats.ack_details.rate",
        "consumers",
    ],
)
def test_a_page_of_queues_is_ordered_by_any_value(
    served: InProcessBroker, api: HttpApi, channel: Channel, path: str
) -> None:
    for number, published in enumerate((3, 0, 7, 1, 5)):
        name = f"q{number}"
        api.put(
            f"queues/%2f/{name}",
            {"durable": True, "arguments": KINDS["quorum" if number % 2 else "classic"]},
        )
        for _ in range(published):
            channel.publish(name)
        channel.ready(name)
    channel.qos(2)
    channel.consume("q2")
    channel.consume("q4")
    for message in channel.deliveries(4)[::2]:
        channel.ack(message.tag)
    channel.state("q4")
    collector = collector_of(served)

    def sample() -> None:
        collector._offset += 5
        list(collector.sample_in_steps())

    served.call(sample)

    def value(row: dict[str, Any]) -> tuple[bool, Any]:
        found: Any = row
        for part in path.split("."):
            found = found.get(part, {})
        return found != {}, found if found != {} else 0

    rows = api.get("queues")
    for reverse in (False, True):
        expected = [row["name"] for row in sorted(rows, key=value)]
        if reverse:
            # As in RabbitMQ, that of rows with the same value is turned as well.
            expected.reverse()
        query = f"page=1&page_size=4&sort={path}&sort_reverse={str(reverse).lower()}"
        assert [row["name"] for row in api.get(f"queues?{query}")["items"]] == expected[:4]


def test_a_virtual_host_counts_the_bytes_of_its_connections(served: InProcessBroker, api: HttpApi) -> None:
    collector = collector_of(served)
    with Connection(served.url) as connection:
        connection.channel().declare("q")
        steps_of(served, collector.sample_in_steps)
        (found,) = api.get("connections")
        first = api.get("vhosts/%2f")
        assert (first["recv_oct"], first["send_oct"]) == (found["recv_oct"], found["send_oct"])
        assert first["recv_oct_details"] == {"rate": 0.0}
        channel = connection.channel()
        channel.publish("q", b"x" * 10_000)
        channel.ready("q")
        steps_of(served, collector.sample_in_steps)
    steps_of(served, collector.sample_in_steps)

    # The bytes of a closed connection stay.
    assert first["recv_oct"] + 10_000 < api.get("vhosts/%2f")["recv_oct"] < first["recv_oct"] + 20_000
    samples = api.get("vhosts/%2f?data_rates_age=10&data_rates_incr=5")["recv_oct_details"]["samples"]
    assert len(samples) == 2


def test_a_queue_and_a_channel_at_rest_show_since_when_they_are_idle(
    served: InProcessBroker, api: HttpApi, channel: Channel
) -> None:
    collector = collector_of(served)
    channel.declare("q")
    channel.publish("q")
    channel.ready("q")
    began = datetime.now(UTC)
    steps_of(served, collector.sample_in_steps)

    def shown() -> list[bool]:
        (found,) = api.get("channels")
        return ["idle_since" in each for each in (found, api.get("queues/%2f/q"))]

    assert shown() == [False, False]

    steps_of(served, collector.sample_in_steps)
    assert shown() == [True, True]
    since = datetime.fromisoformat(api.get("queues/%2f/q")["idle_since"])
    # A sample bears the time at which its tick began; since the one before, nothing has changed.
    assert began - timedelta(seconds=2 * TICK) <= since <= datetime.now(UTC)

    channel.publish("q")
    channel.ready("q")
    steps_of(served, collector.sample_in_steps)
    assert shown() == [False, False]


@pytest.mark.parametrize(
    "what", ["publish", "get", "get without ack", "get nothing", "give back", "purge", "deliver", "expire"]
)
def test_what_happens_to_a_queue_at_rest_is_in_the_next_sample(
    served: InProcessBroker, api: HttpApi, channel: Channel, what: str
) -> None:
    collector = collector_of(served)
    channel.declare("q", x_message_ttl=1000)
    if what != "get nothing":
        channel.publish("q")
        channel.publish("q")
    held = channel.get("q") if what == "give back" else None

    def is_idle() -> bool:
        channel.ready("q")
        steps_of(served, collector.sample_in_steps)
        return "idle_since" in api.get("queues/%2f/q")

    for _ in range(4):
        is_idle()
    assert is_idle() or what == "get nothing"

    match what:
        case "publish":
            channel.publish("q")
        case "get" | "get nothing":
            channel.get("q")
        case "get without ack":
            channel.get("q", no_ack=True)
        case "give back":
            assert held is not None
            channel.reject(held.tag, requeue=True)
        case "purge":
            channel.purge("q")
        case "deliver":
            channel.consume("q")
        case _:
            served.advance(1)
    assert not is_idle()
