"""Routing slip: book a trip step by step, and compensate hotel and flight if there is no car.

Run it: AMQP_URL=memory:// python examples/routing_slip.py   (memory:// is a broker in this process; or name one)
"""

import asyncio

from warren.patterns import AbortRoutingSlip, RoutingSlipEnded, RoutingSlips
from warren.sdk import App, Command


class BookFlight(Command, queue="flights.book"):
    to: str


class BookHotel(Command, queue="hotels.book"):
    town: str


class BookCar(Command, queue="cars.book"):
    seats: int


class TripEnded(RoutingSlipEnded, queue="trips.ended"):
    pass


# --8<-- [start:pattern]
slips = RoutingSlips(steps=[BookFlight, BookHotel, BookCar], ends=[TripEnded])


@slips.step(BookFlight)
async def book_flight(step: BookFlight) -> str:
    print(f"flight to {step.to}")
    return "12A"


@book_flight.compensate
async def cancel_flight(step: BookFlight, seat: str) -> None:
    print(f"seat {seat} is free again")


@slips.step(BookHotel)
async def book_hotel(step: BookHotel) -> int:
    print(f"hotel in {step.town}")
    return 217


@book_hotel.compensate
async def cancel_hotel(step: BookHotel, room: int) -> None:
    print(f"room {room} is free again")


@slips.step(BookCar)
async def book_car(step: BookCar) -> None:
    raise AbortRoutingSlip("there is no car")


# --8<-- [end:pattern]


app = App()
app.include(slips)


@app.handle(TripEnded)
async def ended(trip: TripEnded) -> None:
    print("booked" if trip.completed else f"not booked: {trip.reason}")
    over.set()


over = asyncio.Event()


async def main() -> None:
    async with app:
        await slips.start([BookFlight(to="Rome"), BookHotel(town="Rome"), BookCar(seats=4)], end=TripEnded)
        await over.wait()


if __name__ == "__main__":
    asyncio.run(main())
