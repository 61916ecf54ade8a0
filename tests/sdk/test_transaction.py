"""Transactions: publishes and acknowledgements take effect together or not at all; an unknown outcome is reported."""

# ruff: noqa: PT012 - it is the end of a transaction's block that raises

from __future__ import annotations

import asyncio

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from warren.sdk import (
    BatchError,
    Command,
    ConfigError,
    Queue,
    Transaction,
    TransactionError,
    TransactionFailed,
    TransactionUnknown,
    Unroutable,
)


async def test_nothing_is_published_before_the_commit(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Ping(Command, queue=name):
        number: int

    async with make_app() as app:
        for first in (0, 3):  # the second uses the channel of the first again
            async with app.transaction() as tx:
                for number in range(first, first + 3):
                    await tx.publish(Ping(number=number), headers={"h": number})
                await amqp_client.holds(name, 0)
            messages = [await amqp_client.take(name) for _ in range(3)]
            assert [message.headers["h"] for message in messages] == list(range(first, first + 3))
            assert [message.delivery_mode for message in messages] == [2, 2, 2]
        assert app.statistics().publisher.confirmed == 6


async def test_an_error_rolls_back_and_the_next_transaction_works(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    app.declare(Queue(name))
    async with app:
        with pytest.raises(ZeroDivisionError):
            async with app.transaction() as tx:
                await tx.publish(b"never", key=name)
                raise ZeroDivisionError
        async with app.transaction() as tx:
            await tx.publish(b"2", key=name)
        assert (await amqp_client.take(name)).body == b"2"
        await amqp_client.holds(name, 0)


async def test_a_commit_acknowledges_received_messages_and_a_rollback_requeues_them(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    app.declare(Queue(name), Queue(f"{name}.to"))
    async with app:
        for number in range(3):
            await app.publish(str(number), key=name)
        with pytest.raises(ZeroDivisionError):
            async with app.transaction() as tx:
                assert await tx.get(name) is not None
                raise ZeroDivisionError
        await amqp_client.holds(name, 3)
        async with app.transaction() as tx:
            moved = [await tx.get(name) for _ in range(4)]
            assert [m.body if m else None for m in moved] == [b"0", b"1", b"2", None]
            assert moved[0] is not None
            assert (moved[0].redelivered, moved[0].queue, moved[0].exchange) == (True, name, "")
            for message in moved[:3]:
                assert message is not None
                await tx.publish(message.body, key=f"{name}.to", message_id=message.message_id)
        await amqp_client.holds(name, 0)
        await amqp_client.holds(f"{name}.to", 3)
        async with app.transaction() as tx:  # on the same channel, whose delivery tags go on
            assert (await tx.get(f"{name}.to") or moved[0]).body == b"0"
        await amqp_client.holds(f"{name}.to", 2)


async def test_unroutable_messages_are_reported_after_the_commit(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    app.declare(Queue(name))
    returned: list[Unroutable] = []
    app.on_return(returned.append)
    async with app:
        with pytest.raises(BatchError) as caught:
            async with app.transaction() as tx:
                for key in (name, "nobody", name, "nobody"):
                    await tx.publish(b"1", key=key, message_id="same")
        assert [failure.index for failure in caught.value.report.failures] == [1, 3]
        assert caught.value.report.total == 4
        assert len(returned) == 2
        await amqp_client.holds(name, 2)


async def test_an_error_of_the_broker_means_nothing_was_committed(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    app.declare(Queue(name))
    async with app:
        with pytest.raises(TransactionFailed, match="no exchange") as caught:
            async with app.transaction() as tx:
                await tx.publish(b"1", key=name)
                await tx.publish(b"2", exchange=f"{name}.none", key="k")
        assert (caught.value.outcome, caught.value.retryable) == ("refused", True)
        with pytest.raises(TransactionFailed, match="no queue"):
            async with app.transaction() as tx:
                await tx.get(f"{name}.none")
        with pytest.raises(ConfigError):
            async with app.transaction() as tx:
                await tx.publish(b"1", key=name)
                await tx.publish(object(), key=name)
        with pytest.raises(ConfigError, match="cannot be written"):
            async with app.transaction() as tx:
                await tx.publish(b"1", key=name, headers={"h": object()})
        async with app.transaction() as tx:
            await tx.publish(b"3", key=name)
        assert (await amqp_client.take(name)).body == b"3"
        await amqp_client.holds(name, 0)
        assert app.statistics().reconnects == 0


async def test_a_connection_lost_before_the_commit_means_nothing_was_committed(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(proxy.url)
    app.declare(Queue(name))
    async with app:
        with pytest.raises(TransactionFailed, match="lost before the commit"):
            async with app.transaction() as tx:
                await tx.publish(b"1", key=name)
                proxy.cut()
                # Of the connection for publishing: the consumers' may be noticed before.
                await eventually(lambda: "publisher" in app.health().waiting, "the loss is noticed")
        async with app.transaction() as tx:
            await tx.publish(b"2", key=name)
        assert (await amqp_client.take(name)).body == b"2"


@pytest.mark.parametrize("lost", ["cut", "silent"])
async def test_a_commit_without_a_reply_is_unknown_and_not_repeated(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str, lost: str
) -> None:
    app = make_app(proxy.url)
    app.declare(Queue(name))
    async with app:
        async with app.transaction():
            pass  # its channel is open now, so that the time below is the commit's alone

        async def commit() -> None:
            async with app.transaction(timeout=0.3 if lost == "silent" else 30) as tx:
                await tx.publish(b"1", key=name)
                proxy.to_client.hold()

        committing = asyncio.create_task(commit())
        await amqp_client.holds(name, 1)
        if lost == "cut":
            proxy.cut()
        with pytest.raises(TransactionUnknown) as caught:
            await committing
        assert (caught.value.outcome, caught.value.retryable) == ("unknown", False)
        proxy.to_client.release()
        async with app.transaction() as tx:
            await tx.publish(b"2", key=name)
        await amqp_client.holds(name, 2)


async def test_a_partial_commit_is_unknown(make_app: MakeApp, amqp_client: AsyncClient, name: str) -> None:
    app = make_app()
    app.declare(
        Queue(name, type="classic", dead_letter_exchange=None, max_length=1, overflow="reject-publish")
    )
    async with app:
        with pytest.raises(TransactionUnknown, match="partial"):
            async with app.transaction() as tx:
                await tx.publish(b"1", key=name)
                await tx.publish(b"2", key=name)
        await amqp_client.holds(name, 1)


async def test_no_transaction_without_a_connection(make_app: MakeApp, proxy: Proxy, name: str) -> None:
    app = make_app(proxy.url)
    with pytest.raises(ConfigError, match="does not run"):
        async with app.transaction():
            pass
    async with app:
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: "publisher" in app.health().waiting, "the loss is noticed")
        with pytest.raises(TransactionFailed, match="no connection"):
            async with app.transaction(timeout=0.1):
                pass
        proxy.accept()
        await eventually(lambda: app.ready, "it is back")
        tx = app.transaction()
        with pytest.raises(TransactionError, match="not begun"):
            await tx.publish(b"1", key=name)
        async with tx:
            pass
        with pytest.raises(TransactionError, match="once"):
            async with tx:
                pass


async def test_large_transactions_wait_for_the_socket(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    app.declare(Queue(name))
    async with app:
        async with app.transaction() as tx:
            for _ in range(20):
                await tx.publish(bytes(300_000), key=name)
        await amqp_client.holds(name, 20)


async def test_the_reply_to_a_cancelled_get_is_not_given_to_the_next(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(proxy.url)
    app.declare(Queue(f"{name}.a"), Queue(f"{name}.b"))
    async with app:
        await app.publish(b"a", key=f"{name}.a")
        await app.publish(b"b", key=f"{name}.b")
        async with app.transaction() as tx:
            proxy.to_client.hold()
            await give_up(tx, f"{name}.a")
            getting = asyncio.create_task(tx.get(f"{name}.b"))
            await asyncio.sleep(0)
            proxy.to_client.release()
            got = await getting
            assert got is not None
            assert (got.body, got.queue) == (b"b", f"{name}.b")
        await amqp_client.holds(f"{name}.a", 1)
        await amqp_client.holds(f"{name}.b", 0)


async def test_a_get_that_is_cancelled_right_before_the_commit_keeps_no_message(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(proxy.url)
    app.declare(Queue(name))
    async with app:
        await app.publish(b"1", key=name)
        async with app.transaction() as tx:
            proxy.to_client.hold()
            await give_up(tx, name)
            asyncio.get_running_loop().call_later(0.05, proxy.to_client.release)
        await amqp_client.holds(name, 1)


async def give_up(tx: Transaction, queue: str) -> None:
    getting = asyncio.create_task(tx.get(queue))
    await asyncio.sleep(0)
    getting.cancel()
    await asyncio.wait((getting,))
    assert getting.cancelled()
