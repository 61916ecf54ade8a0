"""Contents of stores and headers of patterns read back equal, or are refused: sagas, timers, routing slips."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pydantic import BaseModel, Field

from warren.patterns import (
    AbortRoutingSlip,
    DateSchedule,
    ListingStore,
    MemoryStore,
    RoutingSlipEnded,
    RoutingSlips,
    Saga,
    StayInState,
    Timers,
    TransitionTo,
)
from warren.sdk import App, Command, ConfigError, Event
from warren.testing import Warren

INFINITY = float("inf")


@pytest.fixture
def memory(warren: Warren) -> ListingStore:
    return MemoryStore(clock=warren.clock)


class Aliased(BaseModel):
    """Data whose field is called differently in JSON."""

    order_number: str = Field(alias="orderNumber")


class Auction(BaseModel):
    lowest: float = INFINITY


class Opened(Event, exchange="auctions", key="opened", audience=["auctions.saga"]):
    lot: str


class Bid(Event, exchange="auctions", key="bid", audience=["auctions.saga"]):
    lot: str
    price: float = 5.0


async def test_saga_data_with_an_alias_reads_back(warren: Warren, memory: ListingStore) -> None:
    app = App()
    saga = Saga("auctions", Aliased, store=memory, key="lot")

    @saga.starts(Opened)
    def opened(event: Opened) -> TransitionTo[Aliased]:
        return TransitionTo("open", Aliased(orderNumber="7"))

    @saga.on("open", Bid)
    def bid(data: Aliased, event: Bid) -> TransitionTo[Aliased]:
        return TransitionTo(f"order {data.order_number}", data)

    app.include(saga)
    async with warren.running(app):
        await warren.publish(Opened(lot="1"))
        await warren.publish(Bid(lot="1"))
        history = await saga.history("1")
    assert history is not None
    assert history.state == "order 7"


async def test_saga_data_that_cannot_be_written_leaves_the_saga_as_it_was(
    warren: Warren, memory: ListingStore
) -> None:
    app = App()
    saga = Saga("auctions", Auction, store=memory, key="lot")

    @saga.starts(Opened)
    def opened(event: Opened) -> TransitionTo[Auction]:
        return TransitionTo("open", Auction(lowest=9.0))

    @saga.on("open", Bid)
    def bid(data: Auction, event: Bid) -> StayInState[Auction]:
        return StayInState(Auction(lowest=event.price if event.price < data.lowest else INFINITY))

    app.include(saga)
    async with warren.running(app):
        await warren.publish(Opened(lot="1"))
        await warren.publish(Bid(lot="1", price=10.0))
        await warren.advance(seconds=10)
        (letter,) = warren.dead_letters
        assert "a Auction cannot be written: lowest is infinite or not a number" in (letter.error or "")
        await warren.publish(Bid(lot="1", price=5.0))
        history = await saga.history("1")
    assert history is not None
    assert history.as_json()["data"] == {"lowest": 5.0}


async def test_a_timer_whose_message_cannot_be_written_is_refused(
    warren: Warren, memory: ListingStore
) -> None:
    app = App()
    timers = Timers("house", store=memory, sends=[Bid])
    app.include(timers)
    async with warren.running(app):
        with pytest.raises(ConfigError, match="a Bid cannot be written: price is infinite"):
            await timers.put(
                DateSchedule("bid", warren.now + timedelta(hours=1), Bid(lot="1", price=INFINITY))
            )
        assert await timers.cancel("bid") is False


class BookFlight(Command, queue="flights"):
    to: str


class BookHotel(Command, queue="hotels"):
    to: str


class Ended(RoutingSlipEnded, queue="trips.ended"):
    pass


@pytest.mark.parametrize("result", [Aliased(orderNumber="7"), Auction()], ids=["alias", "infinite"])
async def test_the_result_of_a_step_reads_back_or_the_step_fails(
    warren: Warren, result: Aliased | Auction
) -> None:
    app = App()
    slips = RoutingSlips(steps=[BookFlight, BookHotel], ends=[Ended])
    compensated: list[object] = []

    async def book(step: BookFlight) -> object:
        return result

    book.__annotations__["return"] = type(result)
    flight = slips.step(BookFlight)(book)

    @flight.compensate
    async def cancel(step: BookFlight, booked: object) -> None:
        compensated.append(booked)

    @slips.step(BookHotel)
    async def hotel(step: BookHotel) -> None:
        raise AbortRoutingSlip("no room")

    @app.handle(Ended)
    async def log(event: Ended) -> None:
        pass

    app.include(slips)
    async with warren.running(app):
        await slips.start([BookFlight(to="LIS"), BookHotel(to="LIS")], end=Ended)
        await warren.settle()
        (end,) = warren.handled(Ended)
    if isinstance(result, Aliased):
        assert (compensated, end.failed, end.reason) == ([result], "book_hotel", "no room")
    else:
        assert (compensated, end.failed) == ([], "book_flight")
        assert "a Auction cannot be written: lowest is infinite" in (end.reason or "")
