"""Pause and resume a subscription, by hand and by a circuit breaker while its handler fails."""

import asyncio

from warren.sdk import App, CircuitBreaker, Command, Mode, Retry


class Charge(Command, queue="charges"):
    order_id: str


app = App(retry=Retry(1))
bank_answers = asyncio.Event()
charged = asyncio.Event()


@app.handle(Charge, concurrency=1, breaker=CircuitBreaker(failures=1, pause="200ms", on=(ConnectionError,)))
async def charge(command: Charge) -> None:
    if not bank_answers.is_set():
        raise ConnectionError("the bank does not answer")
    print(f"charged {command.order_id}")
    charged.set()


async def main() -> None:
    async with app:
        subscription = app.subscriptions["charges"]
        await subscription.pause()  # during a migration, for example
        await app.publish(Charge(order_id="42"))
        await subscription.resume()
        await subscription.wait_for_mode(Mode.TRIPPED)
        print("its handler failed; the message waits in its queue")
        bank_answers.set()
        await charged.wait()


if __name__ == "__main__":
    asyncio.run(main())
