"""Routers: handlers that are defined without an App, and included in one with the names of their queues prefixed."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.polling import eventually
from warren.patterns import Partitions
from warren.sdk import (
    App,
    Binding,
    Command,
    ConfigError,
    Delivery,
    Depends,
    Event,
    Exchange,
    Queue,
    Request,
    Router,
)

CallNext = Callable[[Delivery], Awaitable[None]]


class Placed(Event, exchange="orders", key="order.placed", audience=["archive"]):
    number: int


class Charge(Command, queue="charges"):
    number: int


def queues(app: App) -> set[str]:
    return {item.name for item in app.topology if isinstance(item, Queue)} - {"warren.dead"}


def unstarted() -> App:
    return App("amqp://localhost")


async def test_a_router_handles_every_kind_of_message_in_the_app_that_includes_it(
    make_app: MakeApp, name: str
) -> None:
    class Done(Event, exchange=f"{name}.x", key="done"):
        number: int

    class Ping(Command, queue=f"{name}.ping"):
        number: int

    class Double(Request[int], queue=f"{name}.double"):
        number: int

    seen: list[object] = []
    router = Router(prefix=f"{name}.")

    def ledger() -> str:
        return "ledger"

    @router.handle(Done, queue="done")
    async def done(message: Done, delivery: Delivery) -> None:
        seen.append((delivery.queue, message.number))

    @router.handle(Ping)
    def ping(message: Ping, app: App, book: Annotated[str, Depends(ledger)]) -> None:
        seen.append((app is running, book))

    @router.handle.batch(Done, queue="batches", size=2)
    async def batch(messages: list[Done]) -> None:
        seen.extend(("batch", message.number) for message in messages)

    @router.handle(Double)
    async def double(message: Double) -> int:
        return 2 * message.number

    running = make_app()
    running.include(router)
    async with running as app:
        await app.publish(Done(number=1))
        await app.publish(Done(number=2))
        await app.publish(Ping(number=1))
        assert await app.call(Double(number=21)) == 42
        await eventually(lambda: len(seen) == 5, "every message was handled")
    assert sorted(map(str, seen)) == sorted(
        map(
            str,
            [
                (f"{name}.done", 1),
                (f"{name}.done", 2),
                (True, "ledger"),
                ("batch", 1),
                ("batch", 2),
            ],
        )
    )


def test_a_queue_of_a_router_dead_letters_to_another_one_of_it() -> None:
    """The default exchange takes the name of a queue as the routing key."""
    router = Router(prefix="billing.")
    router.declare(
        Queue("parked", dead_letter_exchange=None),
        Queue("late", dead_letter_exchange="", dead_letter_routing_key="parked"),
        Queue("other", dead_letter_exchange="letters", dead_letter_routing_key="late"),
    )
    app = unstarted()
    app.include(router)
    keys = {item.name: item.dead_letter_routing_key for item in app.topology if isinstance(item, Queue)}
    assert (keys["billing.late"], keys["billing.other"]) == ("billing.parked", "late")


def test_prefixes_compose_and_apply_to_the_names_of_the_routers_own_queues_only() -> None:
    inner = Router(prefix="eu.")
    outer = Router(prefix="billing.")

    @inner.handle(Placed, queue=Queue("placed", max_priority=3))
    async def placed(message: Placed) -> None: ...

    @inner.handle(Charge)
    async def charge(message: Charge) -> None: ...

    inner.declare(
        Exchange("audits"),
        Queue("audit", dead_letter_exchange=None),
        Binding("audits", "audit", "#"),
        Binding("audits", "orders", "#", to_exchange=True),
    )
    inner.publishes(Placed)

    @outer.handle(dict, queue="foreign")
    async def foreign(message: dict[str, Any]) -> None: ...

    outer.include(inner)
    app = unstarted()
    app.include(outer)

    assert queues(app) == {
        "billing.eu.placed",
        "billing.eu.placed.dead",
        "billing.eu.audit",
        "billing.foreign",
        "billing.foreign.dead",
        "charges",
        "charges.dead",
        "archive",
        "archive.dead",
    }
    assert {item.name for item in app.topology if isinstance(item, Exchange)} == {
        "audits",
        "orders",
        "warren.dead",
    }
    bindings = [item for item in app.topology if isinstance(item, Binding) and item.source != "warren.dead"]
    assert sorted((one.source, one.destination, one.key) for one in bindings) == [
        ("audits", "billing.eu.audit", "#"),
        ("audits", "orders", "#"),
        ("orders", "archive", "order.placed"),
        ("orders", "billing.eu.placed", "order.placed"),
    ]
    by_name = {item.name: item for item in app.topology if isinstance(item, Queue)}
    assert by_name["billing.eu.placed"].type_reason == "max_priority=3"


async def test_a_middleware_of_a_router_wraps_its_own_handlers_inside_those_of_the_app(
    make_app: MakeApp, name: str
) -> None:
    steps: list[str] = []

    def note(step: str) -> Callable[[Delivery, CallNext], Awaitable[None]]:
        async def middleware(delivery: Delivery, call_next: CallNext) -> None:
            steps.append(step)
            await call_next(delivery)

        return middleware

    outer, inner, other = Router(prefix=f"{name}."), Router(), Router(prefix=f"{name}.")

    @inner.handle(int, queue="inner")
    async def handle_inner(message: int) -> None:
        steps.append("handler")

    @outer.handle(int, queue="outer")
    async def handle_outer(message: int) -> None:
        steps.append("outer handler")

    @other.handle(int, queue="other")
    async def handle_other(message: int) -> None:
        steps.append("other handler")

    outer.include(inner)
    app = make_app()
    app.include(outer)
    app.include(other)
    # Middlewares that are added later apply as well.
    inner.middleware(handle=note("inner, first"))
    inner.middleware(handle=note("inner, second"))
    outer.middleware(handle=note("outer"))
    app.middleware(handle=note("app"))
    async with app:
        await app.publish(1, key=f"{name}.inner")
        await eventually(lambda: "handler" in steps, "the message was handled")
        assert steps == ["app", "outer", "inner, second", "inner, first", "handler"]
        steps.clear()
        await app.publish(1, key=f"{name}.outer")
        await eventually(lambda: "outer handler" in steps, "the message was handled")
        assert steps == ["app", "outer", "outer handler"]
        steps.clear()
        await app.publish(1, key=f"{name}.other")
        await eventually(lambda: "other handler" in steps, "the message was handled")
        assert steps == ["app", "other handler"]


def test_what_is_added_to_an_included_router_is_added_to_its_apps() -> None:
    outer, inner = Router(prefix="a."), Router(prefix="b.")
    app = unstarted()
    app.include(outer)
    outer.include(inner)

    @inner.handle(Placed, queue="late")
    async def late(message: Placed) -> None: ...

    outer.declare(Queue("declared"))
    assert {"a.b.late", "a.declared"} <= queues(app)


def test_a_router_serves_one_app_after_another_and_keeps_none_alive() -> None:
    router = Router()

    @router.handle(Placed, queue="placed")
    async def placed(message: Placed) -> None: ...

    apps = [unstarted() for _ in range(3)]
    for app in apps:
        app.include(router)
        assert "placed" in queues(app)
    references = [weakref.ref(app) for app in apps]
    del app
    apps.clear()
    gc.collect()
    assert [reference() for reference in references] == [None, None, None]


def test_a_router_is_included_once() -> None:
    router, outer = Router(prefix="billing."), Router()
    outer.include(router)
    app = unstarted()
    app.include(outer)
    with pytest.raises(
        ConfigError, match=r"^the router with the prefix 'billing\.' is included in this App already"
    ):
        app.include(router)
    with pytest.raises(
        ConfigError, match=r"(?m)^the router is included in this App already: include it once$"
    ):
        app.include(outer)
    with pytest.raises(ConfigError, match=r"(?m)^the router is included here already: include it once$"):
        outer.include(router)
    with pytest.raises(
        ConfigError, match=r"(?m)^a router cannot include itself, or a router that includes it$"
    ):
        router.include(outer)


async def test_the_router_of_a_running_app_is_refused(make_app: MakeApp, name: str) -> None:
    router = Router(prefix=f"{name}.")

    @router.handle(int, queue="numbers")
    async def numbers(message: int) -> None: ...

    first, second = make_app(), make_app()
    first.include(router)
    async with first:
        with pytest.raises(ConfigError, match="belongs to another App that runs: stop that App first"):
            second.include(router)
        with pytest.raises(ConfigError, match="the App runs already: add a handler before it starts"):
            router.handle(str, queue="late")
        with pytest.raises(ConfigError, match="the App runs already: add a middleware before it starts"):
            router.middleware(handle=lambda delivery, call_next: call_next(delivery))
        with pytest.raises(ConfigError, match="the App runs already: include a component before it starts"):
            first.include(Router())
    second.include(router)
    assert f"{name}.numbers" in queues(second)


async def no_message() -> None: ...


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (lambda router: router.handle(no_message), "router.handle takes the message class"),
        (lambda router: router.handle(Placed, queue="q", retires=1), "router.handle has no option 'retires'"),
        (lambda router: router.handle(Placed, queue="q", concurrency=0), "concurrency must be at least 1"),
        (lambda router: router.handle(Placed), "a handler of Placed needs queue="),
        (lambda router: router.handle(Placed, queue="q", keys="a"), "keys is a list of binding keys"),
        (lambda router: router.handle(Charge, queue="q"), "Charge has its own queue 'charges'"),
        (lambda router: router.handle(Charge)(no_message), "must take the message as its first parameter"),
        (lambda router: router.handle.batch(Charge, size=0), "size must be at least 1"),
        (lambda router: router.publishes(Charge(number=1)), "router.publishes takes message classes"),
    ],
)
def test_a_mistake_is_refused_where_it_is_made(mistake: Callable[[Any], object], text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        mistake(Router())
    assert text in str(raised.value)


async def test_a_pattern_in_a_router_belongs_to_the_app(make_app: MakeApp, name: str) -> None:
    partitions = Partitions(name, 1, key=lambda message: "key")

    class Moved(Event, exchange=partitions.exchange, key="moved"):
        number: int

    router = Router(prefix="ignored.")
    router.include(partitions)
    seen = asyncio.Queue[int]()

    @partitions.handle(Moved)
    async def moved(message: Moved) -> None:
        seen.put_nowait(message.number)

    app = make_app()
    app.include(router)
    assert all(queue.startswith(name) for queue in queues(app))
    async with app:
        await partitions.publish(Moved(number=7))
        assert await seen.get() == 7
