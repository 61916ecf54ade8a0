"""Validation of queues: arguments of each type, and values that a broker would refuse."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest

from tests.sdk.conftest import MakeApp
from warren.sdk import Binding, ConfigError, Exchange, Queue
from warren.sdk.topology.queue_arguments import ALL, ARGUMENTS, QueueType

SECOND = timedelta(seconds=1)

SAMPLES: dict[str, Any] = {
    "delivery_limit": 5,
    "dead_letter_exchange": "dead",
    "dead_letter_strategy": "at-most-once",
    "message_ttl": SECOND,
    "expires": 60 * SECOND,
    "max_length": 10,
    "max_length_bytes": 1_000_000,
    "overflow": "reject-publish",
    "single_active_consumer": True,
    "max_priority": 10,
    "mode": "lazy",
    "version": 2,
    "leader_locator": "client-local",
    "initial_group_size": 1,
    "target_group_size": 1,
    "member_placement_tag": "fast",
    "max_in_memory_length": 10,
    "max_in_memory_bytes": 1000,
    "consumer_timeout": 60 * SECOND,
    "consumer_disconnected_timeout": 60 * SECOND,
    "delayed_retry": "all",
    "delayed_retry_min": SECOND,
    "delayed_retry_max": 2 * SECOND,
    "max_age": timedelta(days=7),
    "max_segment_size_bytes": 1_000_000,
    "filter_size_bytes": 16,
    "initial_cluster_size": 1,
}

# Errors that a type checker reports are raised at runtime here: the arguments are passed as a dictionary.
make = cast(Callable[..., Queue], Queue)


def test_each_type_has_its_own_arguments_and_refuses_the_others() -> None:
    assert {argument.field for argument in ARGUMENTS} == {*SAMPLES, "dead_letter_routing_key"}
    for argument in ARGUMENTS:
        if argument.field not in SAMPLES:
            continue
        for kind in ALL:
            if kind in argument.types:
                queue = make("q", type=kind, **{argument.field: SAMPLES[argument.field]})
                assert argument.wire in queue.wire_arguments()
            else:
                with pytest.raises(ConfigError, match=f"{argument.field} is no argument of a {kind} queue"):
                    make("q", type=kind, **{argument.field: SAMPLES[argument.field]})


@pytest.mark.parametrize("kind", ALL)
async def test_the_broker_accepts_all_arguments_of_a_type_at_once(
    make_app: MakeApp, name: str, kind: QueueType
) -> None:
    fields = {
        argument.field: SAMPLES[argument.field]
        for argument in ARGUMENTS
        if kind in argument.types and argument.field in SAMPLES and argument.known_since(kind) <= (3, 10)
    }
    async with make_app() as app:
        await app.declare_now(make(name, type=kind, **fields))
        await app.declare_now(make(name, type=kind, **fields))


@pytest.mark.parametrize(
    ("arguments", "error_text"),
    [
        ({"name": ""}, "a queue needs a name"),
        ({"name": "amq.mine"}, "begin with amq. are the broker's own"),
        ({"name": "ä" * 128}, "longer than 255 bytes"),
        ({"name": "\ud800"}, "no text that UTF-8 can carry"),
        ({"type": "qourum"}, "there is no type 'qourum'; there are quorum, classic, stream"),
        ({"type": "quorum", "exclusive": True}, "a quorum queue cannot have exclusive=True; a classic one can"),
        ({"type": "stream", "durable": False}, "a stream queue cannot have durable=False"),
        ({"type": "quorum", "overflow": "reject-publish-dlx"}, "take 'reject-publish'"),
        ({"overflow": "drop-tail"}, "overflow='drop-tail' is none of drop-head"),
        ({"overflow": "drop-head", "dead_letter_strategy": "at-least-once"}, "falls back to at-most-once"),
        ({"dead_letter_exchange": None, "dead_letter_routing_key": "x"}, "without a dead_letter_exchange"),
        ({"message_ttl": -SECOND}, "message_ttl=-1s is no duration: it is negative"),
        ({"expires": timedelta(0)}, "expires is 0 ms; it may be 1 to"),
        ({"delivery_limit": -2}, "delivery_limit is -2; it may be -1 to"),
        ({"max_priority": 256}, "max_priority is 256; it may be 0 to 255"),
        ({"filter_size_bytes": 15}, "filter_size_bytes is 15; it may be 16 to 255"),
        ({"max_length": "many"}, "max_length='many' must be of type int"),
        ({"max_length": True}, "max_length=True must be of type int"),
        ({"message_ttl": "1000"}, "message_ttl='1000' has no unit: write 1000s for seconds"),
        ({"delayed_retry_min": 2 * SECOND, "delayed_retry_max": SECOND}, "delayed_retry_max is below"),
    ],
)  # fmt: skip
def test_the_constructor_refuses_what_a_broker_would_refuse(
    arguments: dict[str, Any], error_text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make(**{"name": "q", **arguments})
    assert error_text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("queue", "kind", "reason"),
    [
        (Queue("q"), "quorum", ""),
        (Queue("q", type="classic"), "classic", ""),
        (Queue("q", max_priority=10), "classic", "max_priority=10"),
        (Queue("q", exclusive=True), "classic", "exclusive=True"),
        (Queue("q", durable=False), "classic", "durable=False"),
        (Queue("q", overflow="reject-publish-dlx"), "classic", "overflow='reject-publish-dlx'"),
        (Queue("q", max_age=timedelta(hours=1)), "stream", "max_age=1:00:00"),
    ],
)
def test_an_argument_of_one_type_selects_it_and_is_the_type_reason(
    queue: Queue, kind: str, reason: str
) -> None:
    assert (queue.type, queue.type_reason) == (kind, reason)
    chosen = reason.partition("=")[0]
    assert queue == make("q", type=kind, **({chosen: getattr(queue, chosen)} if reason else {}))


def test_durations_are_rounded_up_to_the_unit_of_the_argument() -> None:
    queue = Queue("q", message_ttl=timedelta(microseconds=1))
    assert queue.wire_arguments()["x-message-ttl"] == 1
    stream = Queue("s", type="stream", max_age=timedelta(seconds=1, microseconds=1))
    assert stream.wire_arguments() == {"x-queue-type": "stream", "x-max-age": "2s"}


def test_exchanges_and_bindings_are_checked_too() -> None:
    with pytest.raises(
        ConfigError, match="there is no type 'topics'; there are topic, direct, fanout, headers"
    ):
        Exchange("orders", type="topics")
    assert Exchange("later", type="x-delayed-message").type == "x-delayed-message"
    with pytest.raises(ConfigError, match="default exchange"):
        Binding("", "q", "q")
    with pytest.raises(ConfigError, match="longer than 255 bytes"):
        Binding("x", "q", "k" * 256)
