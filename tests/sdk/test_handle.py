"""Handlers: acknowledgement after success, retries, and dead letters for everything else."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgpack
import pytest
from pydantic import BaseModel

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from warren.sdk import (
    App,
    Binding,
    Command,
    ConfigError,
    DeadLetter,
    Delivery,
    Event,
    Exchange,
    Queue,
    Request,
    Requeue,
    Retry,
    current_delivery,
)


async def test_a_handled_message_is_acknowledged_after_the_handler_returned(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Ping(Command, queue=name):
        number: int

    app = make_app()
    started, finish = asyncio.Event(), asyncio.Event()
    seen: list[Ping] = []

    @app.handle(Ping)
    async def ping(message: Ping) -> None:
        seen.append(message)
        started.set()
        await finish.wait()

    async with app:
        await app.publish(Ping(number=7))
        await started.wait()
        statistics = app.statistics().subscriptions[name]
        assert (statistics.acknowledged, statistics.running) == (0, 1)
        finish.set()
        await eventually(
            lambda: app.statistics().subscriptions[name].acknowledged == 1, "the message is acknowledged"
        )
    assert seen == [Ping(number=7)]
    await amqp_client.holds(name, 0)


async def test_a_decorator_returns_the_function_unchanged(make_app: MakeApp, name: str) -> None:
    class Ping(Command, queue=name):
        number: int

    @make_app().handle(Ping)
    async def double(message: Ping, factor: int = 2) -> int:
        return message.number * factor

    assert await double(Ping(number=2)) == 4
    assert double.__name__ == "double"


async def test_a_handler_gets_the_delivery_by_annotation(make_app: MakeApp, name: str) -> None:
    class Happened(Event, exchange=f"{name}.x", key="it.happened"):
        pass

    app = make_app()
    seen: asyncio.Queue[tuple[Delivery, Delivery | None]] = asyncio.Queue()

    @app.handle(Happened, queue=f"{name}.q", keys=["it.*", "that.#"])
    async def note(event: Happened, delivery: Delivery) -> None:
        seen.put_nowait((delivery, current_delivery()))

    async with app:
        await app.publish(Happened(), message_id="m1", headers={"tenant": "a"})
        delivery, current = await seen.get()
        await app.publish(Happened(), key="that.too.is.bound")
        other, _ = await seen.get()
    assert current is delivery
    assert current_delivery() is None
    assert (delivery.message_id, delivery.type, delivery.attempt, delivery.redelivered) == (
        "m1",
        "happened",
        1,
        False,
    )
    assert (delivery.exchange, delivery.routing_key, delivery.queue) == (
        f"{name}.x",
        "it.happened",
        f"{name}.q",
    )
    assert (delivery.headers["tenant"], delivery.republished, delivery.body) == ("a", False, b"{}")
    assert delivery.first_published is not None
    assert other.routing_key == "that.too.is.bound"


async def test_a_failing_handler_is_attempted_three_times_then_the_message_is_dead_lettered(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Ping(Command, queue=name):
        number: int

    app = make_app()
    tried: list[int] = []

    @app.handle(Ping)
    async def ping(message: Ping) -> None:
        tried.append(message.number)
        raise ZeroDivisionError("cannot divide")

    async with app:
        await app.publish(Ping(number=1), message_id="m1", expiration=timedelta(hours=1))
        dead = await amqp_client.take(f"{name}.dead")
        await eventually(lambda: app.statistics().handlers[name].dead_lettered == 1, "the copy is confirmed")
        statistics = app.statistics().handlers[name]
    assert tried == [1, 1, 1]
    assert (dead.body, dead.message_id, dead.type, dead.expiration) == (b'{"number":1}', "m1", "ping", None)
    assert (dead.headers["warren-dead-reason"], dead.headers["warren-dead-queue"]) == ("failed", name)
    assert dead.headers["warren-dead-error"] == "ZeroDivisionError: cannot divide"
    assert isinstance(dead.headers["warren-dead-time"], int)
    assert (statistics.dead_lettered, statistics.failed_attempts, statistics.handled) == (1, 3, 0)
    await amqp_client.holds(name, 0)


async def test_a_handler_that_succeeds_after_a_retry_is_a_success(make_app: MakeApp, name: str) -> None:
    class Ping(Command, queue=name):
        pass

    app = make_app()
    tried: list[None] = []

    @app.handle(Ping)
    async def ping(message: Ping) -> None:
        tried.append(None)
        if len(tried) < 3:
            raise ConnectionError

    async with app:
        await app.publish(Ping())
        await eventually(lambda: app.statistics().subscriptions[name].acknowledged == 1, "it is acknowledged")
        assert app.statistics().handlers[name].dead_lettered == 0
    assert len(tried) == 3


async def test_undecodable_content_is_dead_lettered_at_once(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Ping(Command, queue=name):
        number: int

    app = make_app()

    @app.handle(Ping)
    async def ping(message: Ping) -> None:
        pytest.fail("it was not readable")

    async with app:
        for body in (b"{", b'{"number":"many"}', b"\xff"):
            await amqp_client.put(name, body)
            dead = await amqp_client.take(f"{name}.dead")
            assert (dead.body, dead.headers["warren-dead-reason"]) == (body, "undecodable")


async def test_a_handler_chooses_the_outcome(make_app: MakeApp, amqp_client: AsyncClient, name: str) -> None:
    class Ping(Command, queue=name):
        number: int

    app = make_app()
    seen: list[bool] = []

    @app.handle(Ping)
    async def ping(message: Ping, delivery: Delivery) -> None:
        seen.append(delivery.redelivered)
        if not delivery.redelivered:
            raise Requeue
        raise DeadLetter("it came twice")

    async with app:
        await app.publish(Ping(number=1))
        dead = await amqp_client.take(f"{name}.dead")
    assert seen == [False, True]
    assert (dead.headers["warren-dead-reason"], dead.headers["warren-dead-error"]) == (
        "rejected",
        "DeadLetter: it came twice",
    )


async def test_without_a_dead_letter_exchange_a_failure_is_counted_as_dropped(
    make_app: MakeApp, name: str
) -> None:
    app = make_app()

    @app.handle(bytes, queue=Queue(name, dead_letter_exchange=None))
    async def fail(body: bytes) -> None:
        raise DeadLetter("no")

    async with app:
        await app.publish(b"1", key=name)
        await eventually(lambda: app.statistics().handlers[name].dropped == 1, "it is counted")
        await eventually(lambda: app.statistics().subscriptions[name].rejected == 1, "it is rejected")


async def test_two_types_share_a_queue_and_an_unknown_type_is_dead_lettered(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Opened(Event, exchange=f"{name}.x", key="opened"):
        pass

    class Closed(Event, exchange=f"{name}.x", key="closed"):
        pass

    app = make_app()
    seen: asyncio.Queue[object] = asyncio.Queue()

    @app.handle(Opened, queue=name)
    async def opened(event: Opened) -> None:
        seen.put_nowait(event)

    @app.handle(Closed, queue=name)
    async def closed(event: Closed) -> None:
        seen.put_nowait(event)

    async with app:
        await app.publish(Closed())
        await app.publish(Opened())
        assert {await seen.get(), await seen.get()} == {Opened(), Closed()}
        await amqp_client.put(name, b"{}", type="burnt_down")
        assert (await amqp_client.take(f"{name}.dead")).headers["warren-dead-reason"] == "unknown_type"


async def test_a_message_of_another_type_is_dead_lettered_by_the_only_handler(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    """JSON that fits is not enough; a message without a type, of another client, is taken."""

    class Opened(Command, queue=name, type="opened"):
        number: int

    app = make_app()
    seen: asyncio.Queue[int] = asyncio.Queue()

    @app.handle(Opened)
    async def opened(command: Opened) -> None:
        seen.put_nowait(command.number)

    async with app:
        await amqp_client.put(name, b'{"number": 1}', type="closed")
        dead = await amqp_client.take(f"{name}.dead")
        await amqp_client.put(name, b'{"number": 2}')
        await amqp_client.put(name, b'{"number": 3}', type="opened")
        assert {await asyncio.wait_for(seen.get(), 60), await asyncio.wait_for(seen.get(), 60)} == {2, 3}
    assert dead.headers["warren-dead-reason"] == "unknown_type"
    assert dead.headers["warren-dead-error"] == (
        f"ValueError: queue '{name}' has no handler for type 'closed': its handlers take 'opened'"
    )


async def test_a_handler_of_foreign_content_takes_every_type(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    seen: asyncio.Queue[dict[str, int]] = asyncio.Queue()

    @app.handle(dict, queue=name)
    async def take(content: dict[str, int]) -> None:
        seen.put_nowait(content)

    async with app:
        await amqp_client.put(name, b'{"number": 1}', type="anything")
        assert await asyncio.wait_for(seen.get(), 60) == {"number": 1}


@pytest.mark.parametrize(
    ("kind", "sent", "got"),
    [(bytes, b"\x00\xff", b"\x00\xff"), (dict, {"a": [1]}, {"a": [1]}), (str, "Grüezi", "Grüezi")],
)
async def test_foreign_content_is_decoded_as_the_handlers_type(
    make_app: MakeApp, name: str, kind: type[object], sent: object, got: object
) -> None:
    app = make_app()
    seen: asyncio.Queue[object] = asyncio.Queue()

    @app.handle(kind, queue=name)
    async def take(body: Any) -> None:
        seen.put_nowait(body)

    async with app:
        await app.publish(sent, key=name)
        assert await seen.get() == got


async def test_no_more_handlers_run_than_the_concurrency_allows(make_app: MakeApp, name: str) -> None:
    class Ping(Command, queue=name):
        number: int

    app = make_app()
    running, most = 0, 0
    full, finish = asyncio.Event(), asyncio.Event()

    @app.handle(Ping, concurrency=3)
    async def ping(message: Ping) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await finish.wait()
        running -= 1

    async with app:
        await app.publish_many([Ping(number=number) for number in range(20)])
        await full.wait()
        await eventually(lambda: app.statistics().subscriptions[name].delivered == 6, "the prefetch is used")
        finish.set()
        await eventually(lambda: app.statistics().subscriptions[name].acknowledged == 20, "all are handled")
        assert app.statistics().subscriptions[name].delivered == 20
    assert most == 3


async def test_a_handler_publishes_calls_and_declares_at_concurrency_one(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Ask(Request[int], queue=f"{name}.ask"):
        number: int

    class Ping(Command, queue=f"{name}.ping"):
        number: int

    app = make_app()
    results: asyncio.Queue[int] = asyncio.Queue()

    @app.handle(Ask, concurrency=1)
    async def ask(request: Ask) -> int:
        if request.number > 1:
            await app.publish(Ping(number=0))
        return request.number * 2

    @app.handle(Ping, concurrency=1)
    async def ping(message: Ping) -> None:
        if message.number:
            await app.declare_now(Exchange(f"{name}.x"), Binding(f"{name}.x", f"{name}.ping", "#"))
            await app.publish(Ping(number=0), exchange=f"{name}.x", key="k")
            results.put_nowait(await app.call(Ask(number=message.number), timeout=60))

    async with app:
        await app.publish(Ping(number=5))
        assert await asyncio.wait_for(results.get(), 60) == 10


class Refused(Command, queue="ping"):
    pass


class Unfit(Event, exchange="x"):
    pass


FUTURE = "from __future__ import annotations\n"
DEFERRED = "" if sys.version_info >= (3, 14) else FUTURE
"""Beginning of a module whose annotations are evaluated when they are read, or never."""
FOR_TYPE_CHECKERS = """
from typing import TYPE_CHECKING, Annotated
from warren.sdk import Delivery, Depends
if TYPE_CHECKING:
    from shop import Ledger, Order

def get_ledger() -> Ledger:
    return 1

async def takes_it(order: Order, delivery: Delivery, ledger: Ledger | None = None) -> Order: ...
async def needs_it(order: Order, ledger: Ledger) -> None: ...
async def needs_many(order: Order, ledgers: list[Ledger]) -> None: ...
"""


@pytest.mark.parametrize("beginning", sorted({FUTURE, DEFERRED}))
def test_names_for_type_checkers_only_are_no_error_unless_they_are_needed(beginning: str) -> None:
    module: dict[str, Any] = {}
    # Without the flags of this module, which would be inherited.
    exec(compile(beginning + FOR_TYPE_CHECKERS, "shop", "exec", dont_inherit=True), module)
    app = App("amqp://localhost")
    handle: Any = app.handle
    for name, parameter in (("needs_it", "ledger"), ("needs_many", "ledgers")):
        with pytest.raises(ConfigError) as caught:
            handle(Refused)(module[name])
        assert str(caught.value).startswith(
            f"the handler {name} has a parameter {parameter!r} whose annotation names 'Ledger', which is not defined"
        )
    handle(Refused)(module["takes_it"])
    assert app.on_start(module["get_ledger"])


def test_a_handler_with_an_unsuitable_signature_is_refused() -> None:
    app = App("amqp://localhost")

    async def fits(message: Refused) -> None: ...

    async def nothing() -> None: ...

    async def unfilled(message: Refused, ledger: dict[str, int]) -> None: ...

    async def other(message: Unfit) -> None: ...

    async def generator(message: Refused) -> Any:
        yield message

    class Handler:
        def __init__(self, message: Refused) -> None: ...

    handle: Any = app.handle
    for function, text in [
        (nothing, "must take the message"),
        (unfilled, "a parameter 'ledger' that nothing fills"),
        (other, "takes Unfit, but is registered for Refused"),
        (generator, "is a generator: return the result, do not yield"),
        (Handler, "is a class: decorate a function"),
    ]:
        with pytest.raises(ConfigError, match=text):
            handle(Refused)(function)
    with pytest.raises(ConfigError, match="has its own queue"):
        handle(Refused, queue="other")(fits)
    with pytest.raises(ConfigError, match="needs queue="):
        handle(Unfit)(other)
    with pytest.raises(ConfigError, match="has no key"):
        handle(Unfit, queue="q")(other)
    with pytest.raises(ConfigError, match="keys is a list"):
        handle(Unfit, queue="q", keys="a.b")(other)
    with pytest.raises(ConfigError, match="concurrency must be at least 1"):
        handle(Refused, concurrency=0)
    handle(Refused)(fits)
    with pytest.raises(ConfigError, match="has a handler for Refused already"):
        handle(Refused)(fits)
    with pytest.raises(ConfigError, match="attempts must be at least 1"):
        Retry(0)


async def test_a_deleted_dead_letter_queue_is_declared_again(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()

    @app.handle(bytes, queue=name)
    async def fail(body: bytes) -> None:
        raise DeadLetter("no")

    async with app:
        await amqp_client.channel.queue_delete(f"{name}.dead")
        await app.publish(b"1", key=name)
        await eventually(lambda: app.statistics().handlers[name].dead_lettered == 1, "it is dead")
        dead = await amqp_client.take(f"{name}.dead")
    assert (dead.body, dead.headers["warren-dead-reason"]) == (b"1", "rejected")


async def test_an_unroutable_dead_letter_is_counted_as_dropped(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    app.declare(Exchange(f"{name}.dlx", type="fanout"))

    @app.handle(bytes, queue=Queue(name, type="classic", dead_letter_exchange=f"{name}.dlx"))
    async def fail(body: bytes) -> None:
        raise DeadLetter("no")

    async with app:
        await app.publish(b"1", key=name)
        await eventually(lambda: app.statistics().subscriptions[name].rejected == 1, "it is rejected")
        statistics = app.statistics().handlers[name]
    assert (statistics.dropped, statistics.dead_lettered) == (1, 0)


SECRET = "4242-4242"


class Card(BaseModel):
    number: int


@dataclass
class Account:
    number: int


@pytest.mark.parametrize("kind", [Card, Account, dict[str, int]])
@pytest.mark.parametrize("content_type", ["application/json", "application/msgpack"])
async def test_undecodable_content_appears_in_no_log_or_error(
    make_app: MakeApp,
    amqp_client: AsyncClient,
    name: str,
    kind: Any,
    content_type: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = make_app()

    async def take(message: object) -> None:
        pytest.fail("it was not readable")

    app.handle(kind, queue=name)(take)
    body = {"number": SECRET}
    async with app:
        packed = json.dumps(body).encode() if content_type.endswith("json") else msgpack.packb(body)
        await amqp_client.put(name, packed, content_type=content_type)
        dead = await amqp_client.take(f"{name}.dead")
    assert dead.headers["warren-dead-reason"] == "undecodable"
    assert str(dead.headers["warren-dead-error"]).startswith("ValueError: number: Input should be")
    assert "number: Input should be" in caplog.text
    assert SECRET not in f"{dead.headers} {caplog.text}"
