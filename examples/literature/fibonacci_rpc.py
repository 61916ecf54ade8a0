"""Fibonacci by remote call.

The original waits for its reply for ever, hangs when nobody serves, makes a queue for each call, answers
an error with silence, lets one call in flight at a time, and believes every reply whose correlation id it
does not know. Here a call has a deadline, fails at once without a server, carries errors with their type,
and many are in flight over one reply queue.
"""

import asyncio

from warren.sdk import App, RemoteError, Request

app = App()


class Fibonacci(Request[int], queue="literature.fibonacci"):
    n: int


@app.handle(Fibonacci)
async def fibonacci(request: Fibonacci) -> int:
    if not 0 <= request.n <= 1000:
        raise RemoteError("out_of_range", "n is from 0 to 1000")
    a, b = 0, 1
    for _ in range(request.n):
        a, b = b, a + b
    return a


async def main() -> None:
    async with app:
        print(*await asyncio.gather(*(app.call(Fibonacci(n=n), timeout=5) for n in (10, 20, 30))))
        try:
            await app.call(Fibonacci(n=-1), timeout=5)
        except RemoteError as error:
            print(error.code)


if __name__ == "__main__":
    asyncio.run(main())
