"""Mandatory: unroutable messages are returned to their publisher.

The textbook version registers a return listener, but does not relate a return to the publish that it belongs
to: the listener gets bytes, while the publisher continues as if the publish had succeeded. It also takes the
confirm for success; but the broker confirms an unroutable message too, after its return. Here each publish
raises its own return.
"""

import asyncio

from warren.sdk import App, Unroutable

app = App()


async def main() -> None:
    app.on_return(lambda returned: print("returned:", returned.body.decode()))
    async with app:
        try:
            await app.publish(b"a letter", exchange="amq.direct", key="literature.nowhere", message_id="m1")
        except Unroutable as error:
            print(error.reply_code, error.reply_text, error.routing_key, error.properties["message_id"])


if __name__ == "__main__":
    asyncio.run(main())
