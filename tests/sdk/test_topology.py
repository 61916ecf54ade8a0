"""Declared topology: safe defaults, and one declaration for each name."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from warren.broker import BrokerConfig
from warren.sdk import (
    App,
    Binding,
    Command,
    ConfigError,
    Exchange,
    Queue,
    TopologyMismatch,
    TransportUnavailable,
)
from warren.sdk.topology.queue import UNLIMITED_DELIVERIES

URL = "amqp://localhost"


def test_the_arguments_of_a_default_queue_are_frozen() -> None:
    assert Queue("billing").wire_arguments() == {
        "x-queue-type": "quorum",
        "x-delivery-limit": 20,
        "x-dead-letter-exchange": "warren.dead",
        "x-dead-letter-routing-key": "billing",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }


@pytest.mark.parametrize(
    ("queue", "arguments"),
    [
        (Queue("audit", type="classic", dead_letter_exchange=None), {"x-queue-type": "classic"}),
        (
            Queue("old", type="classic"),
            {
                "x-queue-type": "classic",
                "x-dead-letter-exchange": "warren.dead",
                "x-dead-letter-routing-key": "old",
            },
        ),
        (
            Queue(
                "wait",
                delivery_limit=None,
                dead_letter_exchange="",
                dead_letter_routing_key="target",
                message_ttl=timedelta(minutes=30),
            ),
            {
                "x-queue-type": "quorum",
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": "target",
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",
                "x-message-ttl": 1_800_000,
            },
        ),
        (
            Queue("short", dead_letter_exchange=None, max_length=5, overflow="drop-head", expires=timedelta(hours=1)),
            {
                "x-queue-type": "quorum",
                "x-delivery-limit": 20,
                "x-max-length": 5,
                "x-overflow": "drop-head",
                "x-expires": 3_600_000,
            },
        ),
    ],
)  # fmt: skip
def test_the_arguments_of_other_queues(queue: Queue, arguments: dict[str, object]) -> None:
    assert queue.wire_arguments() == arguments


def test_a_queue_implies_its_dead_letter_queue() -> None:
    app = App(URL)
    app.declare(Queue("billing"))
    assert set(map(str, app.topology)) == set(
        map(
            str,
            [
                Exchange("warren.dead", type="direct"),
                Queue("billing.dead", delivery_limit=UNLIMITED_DELIVERIES, dead_letter_exchange=None),
                Binding("warren.dead", "billing.dead", "billing"),
                Queue("billing"),
            ],
        )
    )


def test_a_queue_with_defaults_gives_way_to_one_with_arguments() -> None:
    classic = Queue("billing", type="classic", dead_letter_exchange=None)
    for order in ([Queue("billing"), classic], [classic, Queue("billing")]):
        app = App(URL)
        app.declare(*order)
        assert [item for item in app.topology if isinstance(item, Queue) and item.name == "billing"] == [
            classic
        ]


def test_a_handler_of_dead_letters_uses_the_implied_queue_unchanged() -> None:
    for order in (["billing", "billing.dead"], ["billing.dead", "billing"]):
        app = App(URL)
        for queue in order:

            @app.handle(bytes, queue=queue)
            async def take(body: bytes) -> None: ...

        queues = {item.name: item for item in app.topology if isinstance(item, Queue)}
        assert queues == {
            "billing": Queue("billing"),
            "billing.dead": Queue(
                "billing.dead", delivery_limit=UNLIMITED_DELIVERIES, dead_letter_exchange=None
            ),
        }


def test_two_declarations_of_one_name_are_refused() -> None:
    app = App(URL)
    app.declare(Exchange("orders", type="fanout"))
    with pytest.raises(ConfigError, match="exchange 'orders' is declared twice"):
        app.declare(Exchange("orders", type="direct"))


async def test_a_queue_that_differs_on_the_broker_fails_the_start(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    await amqp_client.channel.declare_queue(name, durable=True)
    app = make_app()
    app.declare(Queue(name))
    with pytest.raises(
        TopologyMismatch, match=f"cannot declare queue '{name}': PRECONDITION_FAILED"
    ) as caught:
        await app.start()
    assert caught.value.reply_code == 406
    assert not app.ready


async def test_declare_never_only_checks_and_names_what_is_missing(make_app: MakeApp, name: str) -> None:
    class Ping(Command, queue=f"{name}.ping"):
        pass

    careful, careless = make_app(declare="never"), make_app()
    for app in (careful, careless):

        @app.handle(Ping)
        async def ping(message: Ping) -> None: ...

    with pytest.raises(
        TopologyMismatch, match=rf"missing on the broker: .*queue '{name}.ping'.*warren topology apply"
    ):
        await careful.start()
    async with careless, careful:
        assert careful.ready


async def test_declare_now_returns_when_the_broker_has_it(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    async with app:
        await app.declare_now(
            Exchange(f"{name}.x"), Queue(f"{name}.q"), Binding(f"{name}.x", f"{name}.q", "#")
        )
        await app.publish(b"1", exchange=f"{name}.x", key="any")
        await amqp_client.holds(f"{name}.q", 1)
        with pytest.raises(TopologyMismatch, match="PRECONDITION_FAILED"):
            await app.declare_now(Exchange("amq.topic", type="fanout"))
        assert Exchange("amq.topic", type="fanout") not in app.topology


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        (
            [Queue("large", arguments={"x": "y" * 200_000})],
            r"queue 'large': with its arguments it takes 200\d+ bytes",
        ),
        (
            [Binding("amq.headers", "amq.any", arguments={"x": "y" * 200_000})],
            r"to exchange 'amq.headers' .*takes 200\d+ bytes",
        ),
        (
            [Binding("amq.headers", "amq.topic", to_exchange=True, arguments={"x": "y" * 200_000})],
            r"exchange 'amq.topic' to exchange 'amq.headers' .*takes 200\d+ bytes",
        ),
        (
            [Exchange("odd", arguments={"x": object()})],
            "exchange 'odd': its arguments cannot be encoded: .*object",
        ),
        (
            [Queue("huge", arguments={"x": 2**70})],
            "queue 'huge': its arguments cannot be encoded: .*1180591620717411303424",
        ),
    ],
    ids=["large queue", "large binding", "large binding of an exchange", "object", "number"],
)
async def test_a_declaration_that_fits_no_frame_fails_and_harms_nothing(
    amqp_url: str, make_app: MakeApp, name: str, items: list[Queue | Binding | Exchange], reason: str
) -> None:
    """The broker closes the connection over a frame that is too large, and registered items are declared on the next."""
    early = App(amqp_url)
    early.declare(*items)
    with pytest.raises(ConfigError, match=f"^cannot declare .*{reason}"):
        await early.start()
    app = make_app()
    async with app:
        with pytest.raises(ConfigError, match=f"^cannot declare .*{reason}"):
            await app.declare_now(*items)
        assert not set(items) & set(app.topology)
        await app.declare_now(Queue(name))
        assert (app.statistics().reconnects, app.ready) == (0, True)


async def test_the_largest_arguments_that_fit_are_declared(make_app: MakeApp, name: str) -> None:
    def queue(size: int) -> Queue:
        return Queue(name, type="classic", dead_letter_exchange=None, arguments={"note": "y" * size})

    async with make_app() as app:
        with pytest.raises(ConfigError, match="takes 140") as caught:
            await app.declare_now(queue(140_000))
        numbers = re.search(
            r"takes (\d+) bytes, and a frame of this broker holds at most (\d+)$", str(caught.value)
        )
        assert numbers is not None
        room = int(numbers[2]) - (int(numbers[1]) - 140_000)
        with pytest.raises(ConfigError, match=f"takes {int(numbers[2]) + 1} bytes"):
            await app.declare_now(queue(room + 1))
        await app.declare_now(queue(room))
        assert app.statistics().reconnects == 0


async def test_a_declaration_over_which_the_broker_closes_the_connection_fails_and_is_not_repeated(
    name: str,
) -> None:
    """RabbitMQ before 4.0 closes the connection over an unknown queue type."""
    with InProcessBroker(config=BrokerConfig(compat="3.10")) as broker:
        early = App(broker.url)
        early.declare(Exchange(name, type="x-unknown"))
        with pytest.raises(TransportUnavailable, match=f"cannot declare exchange '{name}': COMMAND_INVALID"):
            await early.start()
        async with App(broker.url) as app:
            with pytest.raises(
                TransportUnavailable, match="COMMAND_INVALID - unknown exchange type"
            ) as caught:
                await app.declare_now(Exchange(name, type="x-unknown"))
            assert not caught.value.retryable
            await app.declare_now(Queue(name))
            await eventually(lambda: app.ready, "it is ready again")
            assert app.statistics().reconnects == 1


@pytest.mark.parametrize("received", [1, 40, 60])
async def test_an_exclusive_queue_and_its_binding_are_declared_on_one_connection(
    make_app: MakeApp, proxy: Proxy, name: str, received: int
) -> None:
    """An exclusive queue ends with the connection that declared it, possibly before its binding is declared."""
    app = make_app(proxy.url, first_retry=0.001, longest_retry=0.01)
    async with app:
        proxy.to_client.cut_after(received)
        async with asyncio.timeout(60):
            while True:
                try:
                    await app.declare_now(
                        Exchange(name),
                        Queue(f"{name}.q", exclusive=True, dead_letter_exchange=None),
                        Binding(name, f"{name}.q", "#"),
                    )
                    break
                except TopologyMismatch as error:
                    # RabbitMQ may not have noticed yet that the connection is gone which has the queue for itself.
                    if error.reply_code != 405:
                        raise
        proxy.to_client.cut_after(10**9)
        await app.publish(b"1", exchange=name, key="any")
        message = await app.get(f"{name}.q", timeout=60)
        assert message is not None
        await message.ack()
