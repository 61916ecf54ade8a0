"""Exchanges, queues and bindings that are deleted while an App runs: the next publish declares them again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.broker_behaviour import Behaviour
from tests.support.polling import eventually
from warren.sdk import (
    App,
    BatchError,
    Binding,
    Command,
    Event,
    Exchange,
    PublishError,
    Queue,
    TransactionFailed,
    Unroutable,
    WarrenError,
)
from warren.sdk.extend import encode
from warren.sdk.topology.registry import TopologyRegistry

Delete = Callable[[AsyncClient, str], Awaitable[None]]
UntilNoticed = Callable[[Delete], Awaitable[None]]
Publish = Callable[[App, list[object]], Awaitable[object]]


async def one_by_one(app: App, messages: list[object]) -> None:
    for message in messages:
        await app.publish(message)


async def at_once(app: App, messages: list[object]) -> None:
    await asyncio.gather(*map(app.publish, messages))


async def many(app: App, messages: list[object]) -> None:
    await app.publish_many(messages)


async def from_futures(app: App, messages: list[object]) -> None:
    await asyncio.gather(*[await app.submit(message) for message in messages])


async def transaction(app: App, messages: list[object]) -> None:
    async with app.transaction() as tx:
        for message in messages:
            await tx.publish(message)


PUBLISHES = [one_by_one, at_once, many, from_futures]


class Shop:
    """App with a queue for commands, and a queue that is bound to the exchange of an event.

    :ivar seen: numbers of the handled messages. A message may arrive twice: if the broker closes the channel, the
        unconfirmed messages are published again.
    """

    def __init__(self, app: App, name: str) -> None:
        class Pack(Command, queue=f"{name}.packing"):
            number: int

        class Packed(Event, exchange=f"{name}.events", key="packed", audience=[f"{name}.listeners"]):
            number: int

        self.app, self.name = app, name
        self.command, self.event = Pack, Packed
        self.seen: set[int] = set()

        @app.handle(Pack)
        async def pack(message: Pack) -> None:
            self.seen.add(message.number)

        @app.handle(Packed, queue=f"{name}.listeners")
        async def packed(event: Packed) -> None:
            self.seen.add(event.number)

    def messages(self, first: int) -> list[object]:
        """Return two messages for each of the two queues, numbered from `first`."""
        kinds = (self.command, self.event) * 2
        return [kind(number=number) for number, kind in enumerate(kinds, first)]

    async def receives(self, first: int) -> None:
        await eventually(lambda: self.seen >= set(range(first, first + 4)), "all messages are handled")


async def exchange(client: AsyncClient, name: str) -> None:
    await client.channel.exchange_delete(f"{name}.events")


async def queue_of_commands(client: AsyncClient, name: str) -> None:
    await client.channel.queue_delete(f"{name}.packing")


async def queue_of_events(client: AsyncClient, name: str) -> None:
    await client.channel.queue_delete(f"{name}.listeners")


async def binding(client: AsyncClient, name: str) -> None:
    source = await client.channel.get_exchange(f"{name}.events")
    await (await client.channel.get_queue(f"{name}.listeners")).unbind(source, "packed")


async def everything(client: AsyncClient, name: str) -> None:
    await exchange(client, name)
    await queue_of_commands(client, name)
    await queue_of_events(client, name)


DELETIONS = [exchange, queue_of_commands, queue_of_events, binding, everything]
DELETED_QUEUES: dict[Delete, list[str]] = {
    queue_of_commands: ["packing"],
    queue_of_events: ["listeners"],
    everything: ["packing", "listeners"],
}


@pytest.fixture
def until_noticed(server: Behaviour, name: str, caplog: pytest.LogCaptureFixture) -> UntilNoticed:
    """Return a function that waits until the App has noticed a deletion, on a broker on which it must be first."""

    def is_logged(text: str) -> bool:
        return text in caplog.text

    async def until_noticed(delete: Delete) -> None:
        if not server.keeps_consumers_of_deleted_quorum_queues:
            return
        for queue in DELETED_QUEUES.get(delete, ()):
            lost = f"event=consumer.lost queue={name}.{queue} "
            await eventually(partial(is_logged, lost), "the consumer is cancelled")
        caplog.clear()

    return until_noticed


@pytest.mark.parametrize("publish", PUBLISHES)
@pytest.mark.parametrize("delete", DELETIONS)
async def test_what_was_deleted_under_a_running_app_is_declared_again(
    make_app: MakeApp,
    amqp_client: AsyncClient,
    name: str,
    delete: Delete,
    publish: Publish,
    until_noticed: UntilNoticed,
) -> None:
    """Delete before the first publish and after it: the first declares what its message class needs, the second does not."""
    shop = Shop(make_app(), name)
    async with shop.app:
        for first in (0, 4):
            await delete(amqp_client, name)
            await until_noticed(delete)
            await publish(shop.app, shop.messages(first))
            await shop.receives(first)
        statistics = shop.app.statistics().publisher
    assert (statistics.returned, statistics.nacked, statistics.timed_out, statistics.unconfirmed) == (0,) * 4


async def test_the_first_publish_of_an_event_binds_the_queues_of_the_app_to_its_deleted_exchange(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    """An event without an audience is published although no queue takes it, so that nobody would notice."""

    class Packed(Event, exchange=f"{name}.events", key="packed"):
        number: int

    app = make_app()
    seen: list[int] = []

    @app.handle(Packed, queue=f"{name}.listeners")
    async def packed(event: Packed) -> None:
        seen.append(event.number)

    async with app:
        await exchange(amqp_client, name)
        await app.publish(Packed(number=1))
        await eventually(lambda: seen == [1], "the event is handled")


async def test_a_sender_declares_the_deleted_queue_of_a_command_again(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Pack(Command, queue=f"{name}.packing"):
        number: int

    app = make_app()
    async with app:
        await app.publish(Pack(number=1))
        await amqp_client.channel.queue_delete(f"{name}.packing")
        await app.publish(Pack(number=2))
        await amqp_client.holds(f"{name}.packing", 1)
    assert f"event=topology.recovered exchange= key={name}.packing" in caplog.text


async def test_an_address_that_the_app_has_not_declared_is_an_error_as_before(
    make_app: MakeApp, name: str
) -> None:
    app = make_app()
    async with app:
        with pytest.raises(Unroutable):
            await app.publish(b"", key=f"{name}.nobody")
        with pytest.raises(PublishError, match="no exchange"):
            await app.publish(b"", exchange=f"{name}.nowhere", key="k")
        assert app.statistics().publisher.returned == 1


@pytest.mark.parametrize("options", [{"expires": timedelta(hours=1)}, {"auto_delete": True}], ids=str)
async def test_a_queue_that_the_broker_deletes_by_itself_is_not_declared_again(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, options: Mapping[str, Any]
) -> None:
    app = make_app()
    app.declare(
        Queue(f"{name}.short", type="classic", dead_letter_exchange=None, **options),
        Exchange(f"{name}.events"),
        Binding(f"{name}.events", f"{name}.short", "#"),
    )
    async with app:
        await app.publish(b"", key=f"{name}.short")
        await app.publish(b"", exchange=f"{name}.events", key="k")
        await amqp_client.channel.queue_delete(f"{name}.short")
        with pytest.raises(Unroutable):
            await app.publish(b"", key=f"{name}.short")
        with pytest.raises(Unroutable):
            await app.publish(b"", exchange=f"{name}.events", key="k")


async def test_with_declare_never_a_deleted_queue_is_not_declared(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    first = make_app()
    first.declare(Queue(f"{name}.packing"))
    async with first:
        pass
    app = make_app(declare="never")
    app.declare(Queue(f"{name}.packing"))
    async with app:
        await amqp_client.channel.queue_delete(f"{name}.packing")
        with pytest.raises(Unroutable):
            await app.publish(b"", key=f"{name}.packing")


async def test_an_item_that_exists_with_other_arguments_ends_the_recovery_with_the_error_of_the_publish(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Packed(Event, exchange=f"{name}.events", key="packed", audience=[f"{name}.listeners"]):
        number: int

    app = make_app()
    async with app:
        await app.publish(Packed(number=1))
        await binding(amqp_client, name)
        await amqp_client.channel.queue_delete(f"{name}.listeners")
        await amqp_client.channel.declare_queue(
            f"{name}.listeners", durable=True, arguments={"x-max-length": 1}
        )
        with pytest.raises(Unroutable):
            await app.publish(Packed(number=2))
        assert app.statistics().publisher.returned == 1
    assert "event=topology.recovery_failed" in caplog.text


async def test_publishes_without_confirms_go_on_after_the_exchange_was_deleted(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    """The messages up to the broker's refusal are lost, as this kind of publish permits."""
    shop = Shop(make_app(), name)
    async with shop.app:
        await shop.app.publish(shop.event(number=1), reliability="at_most_once")
        await eventually(lambda: 1 in shop.seen, "the first event is handled")
        await exchange(amqp_client, name)

        async def arrives() -> bool:
            await shop.app.publish(shop.event(number=2), reliability="at_most_once")
            return 2 in shop.seen

        await eventually(arrives, "messages arrive again")


@pytest.mark.parametrize(
    ("delete", "error"), [(exchange, TransactionFailed), (queue_of_commands, BatchError)]
)
async def test_a_transaction_after_one_that_met_a_deleted_item_succeeds(
    make_app: MakeApp,
    amqp_client: AsyncClient,
    name: str,
    delete: Delete,
    error: type[Exception],
    until_noticed: UntilNoticed,
) -> None:
    """The first one fails: what it published cannot be published again, because it may depend on what it received."""
    shop = Shop(make_app(), name)
    async with shop.app:
        await transaction(shop.app, shop.messages(0))
        await shop.receives(0)
        await delete(amqp_client, name)
        await until_noticed(delete)
        with pytest.raises(error):
            await transaction(shop.app, shop.messages(4))
        await transaction(shop.app, shop.messages(8))
        await shop.receives(8)


async def test_a_message_that_no_binding_takes_is_not_declared_for_each_time(
    make_app: MakeApp, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The App has declared the exchange and a binding, which takes other routing keys."""
    app = make_app()
    app.declare(Exchange(f"{name}.events"), Queue(name), Binding(f"{name}.events", name, "taken"))
    declare, declarations = TopologyRegistry.declare, 0

    def counted(*arguments: Any) -> Awaitable[None]:
        nonlocal declarations
        declarations += 1
        return declare(*arguments)

    async with app:
        monkeypatch.setattr(TopologyRegistry, "declare", counted)
        for number in range(5):
            with pytest.raises(Unroutable):
                await app.publish(b"", exchange=f"{name}.events", key=f"other.{number}")
        report = await app.publish_many([b""] * 5, exchange=f"{name}.events", key="other", on_error="report")
        assert len(report.failures) == 5
        await app.publish(b"", exchange=f"{name}.events", key="taken")
        assert app.statistics().publisher.returned == 10
    assert declarations == 1


async def test_a_condition_of_the_publish_is_checked_again_before_the_second_write(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    app.declare(Queue(name))
    writes = 0

    def before_write() -> None:
        nonlocal writes
        writes += 1
        if writes == 2:
            raise WarrenError("the lease is lost")

    async with app:
        await amqp_client.channel.queue_delete(name)
        outgoing = encode(b"", now=0.0, key=name)
        confirmed = await app.submit_encoded(outgoing, 60, before_write)
        with pytest.raises(WarrenError, match="the lease is lost"):
            await confirmed
    assert writes == 2
    await amqp_client.holds(name, 0)


async def test_a_message_waits_for_no_longer_than_its_deadline_while_its_queue_is_declared(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app()
    app.declare(Queue(f"{name}.packing"))
    async with app:
        never = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(TopologyRegistry, "declare", lambda *_: never)
        await amqp_client.channel.queue_delete(f"{name}.packing")
        with pytest.raises(PublishError, match="within the deadline"):
            await app.publish(b"", key=f"{name}.packing", timeout=0.05)
        never.cancel()
