"""Statistics of an App, and the metrics that export them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import pytest

from tests.sdk.conftest import MakeApp
from tests.sdk.telemetry_recorder import Recorded
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from warren.sdk import App, Command, DeadLetter, Delivery, Request, Requeue, Unroutable


async def test_statistics_count_deliveries_and_outcomes(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Charge(Command, queue=name):
        how: str = ""

    class Ask(Request[int], queue=f"{name}.ask"):
        pass

    app = make_app()
    failed: list[str] = []

    @app.handle(Charge, concurrency=1)
    async def charge(command: Charge, delivery: Delivery) -> None:
        if command.how == "requeue" and not delivery.redelivered:
            raise Requeue
        if command.how == "dead":
            raise DeadLetter("no")
        if command.how == "once" and not failed:
            failed.append("once")
            raise KeyError("x")

    @app.handle(Ask)
    async def ask(request: Ask) -> int:
        return 1

    async with app:
        before = app.statistics()
        for how in ("", "requeue", "dead", "once"):
            await app.publish(Charge(how=how))
        with pytest.raises(Unroutable):
            await app.publish(b"x", key=f"{name}.none")
        await app.call(Ask())
        await eventually(lambda: app.statistics().subscriptions[name].acknowledged == 4, "all have ended")
        await eventually(
            lambda: app.statistics().subscriptions[f"{name}.ask"].acknowledged == 1, "the call, too"
        )
        # A request may be answered before it is confirmed.
        await eventually(lambda: app.statistics().publisher.unconfirmed == 0, "all are confirmed")
        statistics = app.statistics()
    assert before.handled == before.publisher.published == 0, "a copy does not change any more"
    assert (statistics.handled, statistics.failed, statistics.retried) == (4, 1, 1)
    assert statistics.dead_lettered == 1
    assert (statistics.redelivered, statistics.in_flight, statistics.reconnects) == (1, 0, 0)
    publisher = statistics.publisher
    assert (publisher.published, publisher.confirmed, publisher.returned, publisher.unconfirmed) == (
        8,
        8,
        1,
        0,
    )
    assert (statistics.calls.calls, statistics.calls.replies, statistics.calls.in_flight) == (1, 1, 0)
    assert statistics.subscriptions[name].delivered == 5
    assert json.loads(json.dumps(asdict(statistics), default=str))["handlers"][name]["dead_lettered"] == 1


@dataclass
class CounterStatistics:
    counted: int = 0
    oldest_ms: int | None = None


class Counter:
    """A component of the user."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.statistics = CounterStatistics(counted=3)

    def register(self, app: App) -> None: ...

    async def on_start(self) -> None: ...

    async def on_stop(self) -> None: ...


async def test_components_are_counted_too(make_app: MakeApp) -> None:
    app = make_app()
    for name in ("orders", "orders", ""):
        app.include(Counter(name))
    async with app:
        found = app.statistics().components
    assert {key: value.counted for key, value in found.items()} == {
        "counter orders": 3, "counter orders #2": 3, "counter": 3,
    }  # fmt: skip


async def test_statistics_are_exported_as_metrics(traced: MakeApp, recorded: Recorded, name: str) -> None:
    class Charge(Command, queue=name):
        pass

    app = traced(name="billing")
    app.include(Counter("orders"))

    @app.handle(Charge)
    async def charge(command: Charge) -> None:
        raise DeadLetter("no")

    async with app:
        await app.publish(Charge())
        await eventually(lambda: app.statistics().dead_lettered == 1, "it is dead")
        await eventually(lambda: app.statistics().in_flight == 0, "and its handler has ended")
        (dead,) = recorded.metric("warren.handler.dead_lettered").data.data_points
        (unconfirmed,) = recorded.metric("warren.publisher.unconfirmed").data.data_points
        (counted,) = recorded.metric("warren.counter.counted").data.data_points
        for metric in ("warren.publisher.blocked", "warren.connection.reconnects", "warren.calls.in_flight"):
            assert recorded.metric(metric).data.data_points[0].value == 0
    assert (dead.value, dead.attributes) == (1, {"warren.app": "billing", "messaging.destination.name": name})
    assert (unconfirmed.value, unconfirmed.attributes) == (0, {"warren.app": "billing"})
    assert (counted.value, counted.attributes) == (
        3, {"warren.app": "billing", "warren.component": "counter orders"},
    )  # fmt: skip


async def test_metrics_include_running_apps_only(make_app: MakeApp, recorded: Recorded) -> None:
    """A second App, and a second run, use the same instruments."""
    apps = [make_app(name=name, telemetry=recorded.telemetry()) for name in ("one", "two")]
    for _ in range(2):
        async with apps[0], apps[1]:
            points = recorded.metric("warren.connection.reconnects").data.data_points
            assert sorted(point.attributes["warren.app"] for point in points) == ["one", "two"]
