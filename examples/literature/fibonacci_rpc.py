"""Remote call: Fibonacci numbers.

The textbook version waits for its reply for ever, hangs without a server, declares a queue for each call,
sends no reply after an error, has one call in flight at a time, and accepts replies with any correlation id.
Here a call has a timeout, fails at once without a server, and raises the server's error with its type; many
calls share one reply queue.
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
