"""Booking of a trip by a routing slip: flight, hotel and car may each fail, and are compensated."""

from __future__ import annotations

from typing import Any

from tests.support.polling import eventually
from warren.patterns import AbortRoutingSlip, RoutingSlipEnded, RoutingSlips
from warren.sdk import App, Command, Delivery, Retry


class TripBooking:
    """A process that handles the steps of the slip.

    :ivar actions: steps that were taken and compensated, in order
    :ivar refused: steps that abort the slip
    :ivar broken: steps that raise an error at every attempt
    """

    def __init__(self, app: App, name: str, *, handles_end: bool = True, **settings: Any) -> None:
        class Flight(Command, queue=f"{name}.flight", type="flight"):
            to: str

        class Hotel(Command, queue=f"{name}.hotel", type="hotel"):
            town: str

        class Car(Command, queue=f"{name}.car", type="car"):
            size: int = 4

        class Ended(RoutingSlipEnded, queue=f"{name}.ended", type="ended"):
            pass

        self.app = app
        self.flight, self.hotel, self.car, self.ended = Flight, Hotel, Car, Ended
        self.actions: list[str] = []
        self.ids: list[str | None] = []
        self.ended_events: list[RoutingSlipEnded] = []
        self.refused: set[str] = set()
        self.broken: set[str] = set()
        self.seat = "12A"
        self.room = 217
        self.slips = RoutingSlips(
            steps=[Flight, Hotel, Car], ends=[Ended], **{"retry": Retry(2, first_wait="1ms"), **settings}
        )

        @self.slips.step(Flight)
        async def flight(step: Flight) -> dict[str, str]:
            await self.do("flight")
            return {"seat": f"{step.to}-{self.seat}"}

        @flight.compensate
        async def cancel_flight(step: Flight, booked: dict[str, str]) -> None:
            self.actions.append(f"no flight to {step.to}, seat {booked['seat']} is free")

        @self.slips.step(Hotel)
        async def hotel(step: Hotel) -> int:
            await self.do("hotel")
            return self.room

        @hotel.compensate
        async def cancel_hotel(step: Hotel, room: int) -> None:
            self.actions.append(f"no hotel in {step.town}, room {room} is free")

        @self.slips.step(Car)
        async def car(step: Car) -> None:
            await self.do("car")

        app.include(self.slips)
        if handles_end:

            @app.handle(Ended)
            async def ended(message: Ended, delivery: Delivery) -> None:
                self.ended_events.append(message)
                self.ids.append(delivery.message_id)

    async def do(self, what: str) -> None:
        await self.before(what)
        if what in self.refused:
            raise AbortRoutingSlip(f"there is no {what}")
        self.actions.append(what)
        if what in self.broken:
            raise RuntimeError(f"the {what} is broken")
        await self.after(what)

    async def before(self, what: str) -> None:
        """Run before a step's effect; tests override this."""

    async def after(self, what: str) -> None:
        """Run after the effect; tests override this."""

    async def start(self, slip_id: str | None = None) -> str:
        steps: list[Command] = [self.flight(to="Rome"), self.hotel(town="Rome"), self.car()]
        return await self.slips.start(steps, end=self.ended, slip_id=slip_id)

    async def wait_for_end(self) -> RoutingSlipEnded:
        await eventually(lambda: bool(self.ended_events), f"the trip is over, not {self.actions}")
        return self.ended_events[0]
