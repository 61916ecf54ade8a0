"""Sagas in every fault, with a real Redis and workers that are killed."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest

from tests.patterns.checkout_saga import Checkout, CheckoutState
from tests.patterns.conftest import PATIENCE, NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.scenarios import lose_confirm, lose_connection, restart
from tests.patterns.faults.skewed_clock import SkewedClock
from tests.patterns.flaky_store import FlakyStore
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.processes import free_port
from tests.support.proxy import Proxy
from tests.support.redis import redis_server
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers
from warren.patterns import COMPENSATED, COMPLETED, RedisStore
from warren.sdk import App

MATRIX = Matrix("saga", page="docs/patterns/saga.md")


def shop(app: App, redis: str, name: str, **settings: object) -> Checkout:
    store = RedisStore(redis, prefix=f"{name}:", timeout=PATIENCE)
    checkout = Checkout(app, store, name, **settings)  # type: ignore[arg-type]
    checkout.handle_commands()
    return checkout


async def checkout_worker(
    worker: WorkerChannel, url: str, name: str, redis: str, before: int = 0, after: int = 0
) -> None:
    """Run the saga in a worker that stops before or after a change of the store."""
    store = FlakyStore(RedisStore(redis, prefix=f"{name}:", timeout=PATIENCE))

    async def stop_before(change: int) -> None:
        if change == before:
            await worker.report_and_wait("not saved yet")

    async def stop_after(change: int) -> None:
        if change == after:
            await worker.report_and_wait("saved")

    store.before, store.after = stop_before, stop_after  # type: ignore[method-assign]
    async with Checkout(App(url), store, name).app:
        await worker.report_and_wait("ready")


async def take_over(
    url: str, redis: str, workers: Workers, new_app: NewApp, name: str, *, charges: int = 1, **stop: int
) -> Checkout:
    """Kill a worker at the given change; return the next process once the order was charged that often."""
    doomed = await workers.start(checkout_worker, url=url, name=name, redis=redis, **stop)
    await workers.wait_for("ready")
    services = shop(new_app(), redis, f"{name}")
    async with new_app() as publisher:
        await publisher.publish(services.placed(order_id="42"))
        await workers.wait_for("saved" if "after" in stop else "not saved yet")
        doomed.kill()
        async with services.app:
            await eventually(lambda: services.received == ["charge"] * charges, f"{charges} charges")
            await services.wait_for_state("42", CheckoutState.PAYING)
    return services


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "the message is redelivered and applied: a step has no effect before it is saved",
)
async def test_a_worker_dies_before_the_state_is_saved(
    amqp_url: str, redis_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    services = await take_over(amqp_url, redis_url, workers, new_app, name, before=1)
    assert services.saga.statistics.passed == 1


@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "between saving and publishing: the message is redelivered and recognised, and the messages of the "
    "step are published",
)
async def test_a_worker_dies_between_saving_and_publishing(
    amqp_url: str, redis_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    services = await take_over(amqp_url, redis_url, workers, new_app, name, after=1)
    assert (services.saga.statistics.passed, services.saga.statistics.repeated) == (0, 1)


@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "between publishing and recording that: the messages are published again, with the same message ids",
)
async def test_a_worker_dies_between_publishing_and_recording_it(
    amqp_url: str, redis_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    services = await take_over(amqp_url, redis_url, workers, new_app, name, charges=2, before=2)
    assert len(services.ids["charge"]) == 1


@MATRIX.shows(
    Fault.LOST_ACK,
    "the message is redelivered, recognised by its id, and changes nothing",
)
async def test_the_acknowledgement_is_lost(amqp_url: str, redis_url: str, new_app: NewApp, name: str) -> None:
    async with Proxy(amqp_url) as proxy, new_app() as publisher:
        checkout, successor = (shop(app, redis_url, name) for app in (new_app(proxy.url), new_app()))
        async with checkout.app:
            await publisher.publish(checkout.placed(order_id="42"))
            await checkout.wait_for_state("42", CheckoutState.PAYING)
            proxy.to_server.hold()
            await publisher.publish(checkout.noted(order_id="42"))
            await eventually(lambda: checkout.saga.statistics.passed == 2, "it is taken")
            proxy.refuse()
            lose_connection(proxy)
            async with successor.app:
                await eventually(lambda: successor.saga.statistics.repeated >= 1, "it comes again")
                history = await successor.wait_for_state("42", CheckoutState.PAYING)
    assert history.as_json()["data"]["notes"] == 1


@MATRIX.shows(
    Fault.LOST_CONFIRM,
    "a message to the saga: the copy has the same id and changes nothing; a message that the saga sends: "
    "it is published again, with the same id",
)
async def test_the_confirm_is_lost(amqp_url: str, redis_url: str, new_app: NewApp, name: str) -> None:
    async with Proxy(amqp_url) as proxy:
        saga = shop(new_app(), redis_url, name)
        async with saga.app, new_app(proxy.url) as publisher:
            await publisher.publish(saga.placed(order_id="41"))
            await saga.wait_for_state("41", CheckoutState.PAYING)
            publishing = publisher.publish(saga.placed(order_id="42"))
            await lose_confirm(proxy, publishing, lambda: len(saga.received) == 2)
            await saga.wait_for_state("42", CheckoutState.PAYING)
            await eventually(lambda: saga.saga.statistics.repeated >= 1, "the copy is known")
    assert saga.received == ["charge", "charge"]


@MATRIX.shows(
    Fault.DUPLICATE,
    "the copy is recognised by its id and changes nothing; no message is sent again",
)
async def test_a_message_comes_three_times(redis_url: str, new_app: NewApp, name: str) -> None:
    checkout = shop(new_app(), redis_url, name)
    async with checkout.app as app:
        await app.publish(checkout.placed(order_id="42"))
        await checkout.wait_for_state("42", CheckoutState.PAYING)
        for _ in range(3):
            await app.publish(checkout.noted(order_id="42"), message_id="the same")
        await eventually(lambda: checkout.saga.statistics.repeated == 2, "two are known")
        assert (await checkout.wait_for_state("42", CheckoutState.PAYING)).as_json()["data"]["notes"] == 1
    assert checkout.received == ["charge"]


@MATRIX.shows(
    Fault.REORDERING,
    "an early message is delayed, up to `early_attempts` times, then dead-lettered with the reason",
)
async def test_later_messages_come_before_the_first(redis_url: str, new_app: NewApp, name: str) -> None:
    checkout = shop(new_app(), redis_url, name)
    async with checkout.app as app:
        await app.publish(checkout.shipped(order_id="42"))
        await app.publish(checkout.charged(order_id="42"))
        await eventually(lambda: checkout.saga.statistics.delayed >= 2, "both are put aside")
        await app.publish(checkout.placed(order_id="42"))
        await checkout.wait_for_state("42", COMPLETED)


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "unacknowledged messages are redelivered; timeouts wait in durable queues, and the time in which the "
    "broker was down counts",
)
async def test_the_broker_is_killed_while_a_timeout_waits(
    mortal_broker: BrokerProcess, redis_url: str, name: str
) -> None:
    checkout = shop(App(mortal_broker.url), redis_url, name, pay_within=timedelta(seconds=1.5))
    async with checkout.app as app:
        await app.publish(checkout.placed(order_id="42"))
        await checkout.wait_for_commands("charge")
        await restart(mortal_broker)
        await checkout.wait_for_state("42", COMPENSATED)
        await checkout.wait_for_commands("charge", "release")


@MATRIX.shows(
    Fault.STORE_DOWN,
    "messages wait up to `patience`, then are acknowledged and delayed: an outage uses up no delivery limit",
)
async def test_the_store_is_down(new_app: NewApp, name: str, tmp_path: Path) -> None:
    port = free_port()
    checkout = shop(new_app(), f"redis://127.0.0.1:{port}/0", name, patience=timedelta(milliseconds=50))
    async with checkout.app as app:
        await app.publish(checkout.placed(order_id="42"))
        await eventually(lambda: checkout.saga.statistics.postponed >= 2, "it is put off")
        with redis_server(tmp_path, port=port):
            await checkout.wait_for_commands("charge")
            await checkout.wait_for_state("42", CheckoutState.PAYING)


@MATRIX.shows(
    Fault.CLOCK_SKEW,
    "steps are not affected; the times in the history are wrong, and the record of a saga that ended is "
    "deleted (`keep`) earlier or later by as much",
)
async def test_a_machine_is_an_hour_ahead(amqp_url: str, redis_url: str, new_app: NewApp, name: str) -> None:
    ahead = Checkout(
        App(amqp_url, clock=SkewedClock(3600)),
        RedisStore(redis_url, prefix=f"{name}:", timeout=PATIENCE),
        name,
    )
    right = shop(new_app(), redis_url, name)
    async with right.app as app, ahead.app:
        for number in range(10):
            await app.publish(right.placed(order_id=f"{number}"))
            await app.publish(right.charged(order_id=f"{number}"))
        for number in range(10):
            history = await right.wait_for_state(f"{number}", CheckoutState.SHIPPING)
            assert [line.message for line in history.entries] == ["placed", "charged"]
        assert ahead.saga.statistics.passed > 0
        await app.publish_many([right.shipped(order_id=f"{number}") for number in range(10)])
        histories = [await right.wait_for_state(f"{number}", COMPLETED) for number in range(10)]
        async with RedisStore(redis_url, prefix=f"{name}:", timeout=PATIENCE) as store:
            forgetful = Checkout(App(amqp_url, clock=SkewedClock(8 * 86_400)), store, name)
            assert [await forgetful.saga.history(history.key) for history in histories] == [None] * 10
        times = [line.at_ms / 1000 for history in histories for line in history.entries]
        assert max(times) > time.time() + 1800


@MATRIX.shows(
    Fault.CLOCK_SKEW,
    "the broker measures timeouts, so they depend on no clock",
)
@pytest.mark.parametrize("skews", [(3600.0, 0.0), (0.0, 3600.0)])
async def test_a_timeout_is_handled_by_a_machine_with_another_clock(
    amqp_url: str, redis_url: str, new_app: NewApp, name: str, skews: tuple[float, float]
) -> None:
    within = timedelta(milliseconds=400)
    first, second = (
        shop(App(amqp_url, clock=SkewedClock(skew)), redis_url, name, pay_within=within) for skew in skews
    )
    shop(new_app(), redis_url, name, pay_within=within)  # For what it declares: it is deleted afterwards.
    async with first.app as app:
        began = time.monotonic()
        await app.publish(first.placed(order_id="42"))
        await eventually(lambda: first.saga.statistics.passed == 1, "it is begun")
    async with second.app:
        await second.wait_for_state("42", COMPENSATED)
    assert time.monotonic() - began >= within.total_seconds() - 0.01
