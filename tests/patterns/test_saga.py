"""Sagas on a broker and each store: completion, compensation, and errors during both."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import BaseModel

from tests.patterns.checkout_saga import Checkout, CheckoutState
from tests.patterns.conftest import NewApp, OpenStore
from tests.patterns.flaky_store import FlakyStore
from tests.support.async_client import take_one
from tests.support.polling import eventually
from warren.patterns import (
    COMPENSATED,
    COMPENSATING,
    COMPLETED,
    ListingStore,
    Saga,
    SqliteStore,
    Store,
    TransitionTo,
)
from warren.sdk import App, Command, ConfigError, Event, Nacked, Request
from warren.testing import Warren


def shop(new_app: NewApp, store: Store, name: str, **settings: object) -> Checkout:
    checkout = Checkout(new_app(), store, name, **settings)  # type: ignore[arg-type]
    checkout.handle_commands()
    return checkout


async def test_a_saga_completes_and_its_history_lists_the_transitions(
    new_app: NewApp, store: Store, name: str
) -> None:
    checkout = shop(new_app, store, name)
    async with checkout.app as app:
        await app.publish(checkout.placed(order_id="42"))
        await checkout.wait_for_commands("charge")
        await app.publish(checkout.charged(order_id="42", charge="c7"))
        await checkout.wait_for_commands("ship")
        await app.publish(checkout.shipped(order_id="42"))
        history = await checkout.wait_for_state("42", COMPLETED)
        assert await checkout.saga.history("43") is None
    assert checkout.received == ["charge", "ship"]
    assert [line.message for line in history.entries] == ["placed", "charged", "shipped"]
    assert "charged -> shipping, sent ship" in str(history)
    assert history.as_json()["data"] == {"order_id": "42", "charge": "c7", "notes": 0}
    assert checkout.saga.statistics.started == checkout.saga.statistics.completed == 1


async def test_steps_are_compensated_in_reverse_order_each_after_the_previous_one(
    new_app: NewApp, one_store: ListingStore, name: str
) -> None:
    checkout = shop(new_app, one_store, name)
    async with checkout.app as app:
        await app.publish(checkout.placed(order_id="42"))
        await app.publish(checkout.charged(order_id="42"))
        await checkout.wait_for_state("42", CheckoutState.SHIPPING)
        await app.publish(checkout.shipped(order_id="42", fine=False))
        history = await checkout.wait_for_state("42", COMPENSATING)
        assert (history.compensations, history.instance.awaited) == (("release",), "refunded")
        await checkout.wait_for_commands("refund")
        assert "release" not in checkout.received
        await app.publish(checkout.refunded(order_id="42"))
        history = await checkout.wait_for_state("42", COMPENSATED)
        await checkout.wait_for_commands("release")
    assert "(no stock)" in str(history)
    assert checkout.saga.statistics.compensated == 1


async def test_a_timeout_compensates_the_saga_and_also_a_step_that_is_late(
    warren: Warren, tmp_path: Path
) -> None:
    checkout = Checkout(
        App(), SqliteStore(tmp_path / "s.sqlite"), "virtual", pay_within=timedelta(minutes=30), wait=False
    )
    checkout.handle_commands()
    async with warren.running(checkout.app):
        await warren.publish(checkout.placed(order_id="paid"))
        await warren.publish(checkout.charged(order_id="paid"))
        await warren.publish(checkout.placed(order_id="unpaid"))
        await warren.advance(minutes=29)
        assert (await checkout.wait_for_state("unpaid", CheckoutState.PAYING)).pending == ()
        await warren.advance(minutes=1, seconds=1)
        history = await checkout.wait_for_state("unpaid", COMPENSATED)
        assert history.entries[-1].note == "not paid in time"
        assert "timeout ->" in str(history)
        await warren.publish(checkout.charged(order_id="unpaid", charge="late"))
        assert checkout.received.count("refund") == 1
        await checkout.wait_for_state("paid", CheckoutState.SHIPPING)
        assert checkout.saga.statistics.stale == 1


async def test_a_duplicate_message_causes_one_transition(
    new_app: NewApp, one_store: ListingStore, name: str
) -> None:
    checkout = shop(new_app, one_store, name)
    async with checkout.app as app:
        await app.publish(checkout.placed(order_id="42"))
        await checkout.wait_for_state("42", CheckoutState.PAYING)
        for _ in range(3):
            await app.publish(checkout.noted(order_id="42"), message_id="the same")
        await eventually(lambda: checkout.saga.statistics.repeated == 2, "two are recognised")
        assert (await checkout.wait_for_state("42", CheckoutState.PAYING)).as_json()["data"]["notes"] == 1


async def test_a_message_that_arrives_too_early_is_delayed_until_its_state(
    new_app: NewApp, one_store: ListingStore, name: str
) -> None:
    checkout = shop(new_app, one_store, name)
    async with checkout.app as app:
        await app.publish(checkout.shipped(order_id="42"))
        await app.publish(checkout.charged(order_id="42"))
        await eventually(lambda: checkout.saga.statistics.delayed >= 2, "both are put aside")
        await app.publish(checkout.placed(order_id="42"))
        await checkout.wait_for_state("42", COMPLETED)


async def test_a_message_without_a_transition_is_dead_lettered_with_the_reason(
    new_app: NewApp, amqp_url: str, one_store: ListingStore, name: str
) -> None:
    checkout = shop(new_app, one_store, name, early_attempts=1)
    async with checkout.app as app:
        await app.publish(checkout.charged(order_id="43"))
        dead = await take_one(amqp_url, f"{name}.saga.dead")
        assert "of '43' has not begun: no transition for charged" in str(dead.headers["warren-dead-error"])
        await app.publish(checkout.placed(order_id="42"))
        await checkout.wait_for_state("42", CheckoutState.PAYING)
        await app.publish(checkout.placed(order_id="42"))
        dead = await take_one(amqp_url, f"{name}.saga.dead")
        assert "is in state paying: no transition for placed" in str(dead.headers["warren-dead-error"])
        assert dead.type == "placed"
        assert checkout.saga.statistics.unexpected == 2


@pytest.mark.parametrize("lost", [1, 2], ids=["of the new state", "of what is published"])
async def test_a_crash_after_a_change_of_the_store_loses_no_message(
    new_app: NewApp, store: ListingStore, name: str, lost: int
) -> None:
    """The store has made the change and its answer never arrives, as after a crash. The pending messages are published."""
    flaky = FlakyStore(store)
    flaky.lose_answer_of = {lost}
    checkout = shop(new_app, flaky, name, patience=timedelta(0))
    async with checkout.app as app:
        await app.publish(checkout.placed(order_id="42"))
        await checkout.wait_for_state("42", CheckoutState.PAYING)
        await checkout.wait_for_commands("charge")
        await eventually(lambda: checkout.saga.statistics.repeated >= 1, "the message came again")
    assert len(checkout.ids["charge"]) == 1


async def test_no_message_is_lost_while_the_store_is_unavailable(
    new_app: NewApp, one_store: ListingStore, name: str
) -> None:
    flaky = FlakyStore(one_store)
    checkout = shop(new_app, flaky, name, patience=timedelta(milliseconds=10))
    async with checkout.app as app:
        flaky.down = True
        await app.publish(checkout.placed(order_id="42"))
        await eventually(lambda: checkout.saga.statistics.postponed >= 3, "it is put off again and again")
        flaky.down = False
        await checkout.wait_for_commands("charge")


async def fill_charge_queue(checkout: Checkout) -> None:
    for _ in range(10):
        await checkout.app.publish(checkout.charge(order_id="of somebody else"))


async def test_a_full_queue_blocks_neither_the_timeout_nor_the_saga(
    new_app: NewApp, one_store: ListingStore, name: str
) -> None:
    checkout = Checkout(new_app(), one_store, name, pay_within=timedelta(milliseconds=300), room=1)
    async with checkout.app as app:
        with pytest.raises(Nacked):
            await fill_charge_queue(checkout)
        await app.publish(checkout.placed(order_id="42"))

        async def undone() -> bool:
            history = await checkout.saga.history("42")
            return history is not None and history.state == COMPENSATED

        await eventually(undone, "the timeout has come, though the charge is still refused")
        # The timeout may come while the broker has not answered to the charge yet.
        await eventually(lambda: checkout.saga.statistics.postponed >= 1, "the charge is put off")
        services = Checkout(new_app(), one_store, name, room=1)
        services.handle_commands()
        async with services.app:
            await services.wait_for_commands("charge", "release")
            await services.wait_for_state("42", COMPENSATED)
    assert checkout.saga.statistics.passed + services.saga.statistics.passed == 2


async def test_two_processes_handle_concurrent_messages_of_one_saga(
    new_app: NewApp, open_store: OpenStore, name: str
) -> None:
    shops = [shop(new_app, open_store(), name) for _ in range(2)]
    async with shops[0].app as app, shops[1].app:
        await app.publish(shops[0].placed(order_id="42"))
        await shops[0].wait_for_state("42", CheckoutState.PAYING)
        await asyncio.gather(*(app.publish(shops[0].noted(order_id="42", number=n)) for n in range(30)))
        await eventually(
            lambda: sum(one.saga.statistics.passed for one in shops) == 31, "all of them are taken"
        )
        history = await shops[0].wait_for_state("42", CheckoutState.PAYING)
    assert history.as_json()["data"]["notes"] == 30
    assert len(history.entries) == 31


async def test_invalid_arguments_raise_config_errors(
    new_app: NewApp, one_store: ListingStore, name: str
) -> None:
    class Data(BaseModel):
        pass

    class Started(Event, exchange=f"{name}.e", key="begun", audience=[f"{name}.saga"]):
        key: str

    class Unlisted(Command, queue=f"{name}.told"):
        pass

    class UnlistedRequest(Request[int], queue=f"{name}.asked"):
        key: str

    with pytest.raises(ConfigError, match="needs a name"):
        Saga("", Data, store=one_store, key="key")
    with pytest.raises(ConfigError, match="at least 1 ms"):
        Saga(name, Data, store=one_store, key="key", keep=timedelta(0))
    saga = Saga(name, Data, store=one_store, key="key")
    app = new_app()
    with pytest.raises(ConfigError, match="has no start"):
        app.include(saga)

    @saga.starts(Started)
    def begun(event: Started) -> TransitionTo[Data]:
        return TransitionTo("waiting", Data(), send=[Unlisted()])

    with pytest.raises(ConfigError, match="has a start by Started already"):
        saga.starts(Started)(begun)
    with pytest.raises(ConfigError, match="shorter than a millisecond"):
        saga.timeout("waiting", after=timedelta(0))(lambda data: TransitionTo("waiting"))
    saga.on("waiting", Started)(lambda data, event: TransitionTo("waiting"))
    with pytest.raises(ConfigError, match="transition for Started in waiting already"):
        saga.on("waiting", Started)(lambda data, event: TransitionTo("waiting"))
    app.include(saga)
    async with app:
        await app.publish(Started(key="42"))
        dead = await take_one(app.url or "", f"{name}.saga.dead")
    assert "sends a Unlisted, which is not named in sends=[...]" in str(dead.headers["warren-dead-error"])
    other = Saga(f"{name}.other", Data, store=one_store, key="key")
    other.starts(UnlistedRequest)(lambda message: TransitionTo("waiting", Data()))
    with pytest.raises(ConfigError, match="only Events and Commands"):
        new_app().include(other)
