"""Mandatory: what no queue takes comes back to its publisher.

The original registers a return listener and then loses the connection between the return and the message
that it belongs to: the listener gets bytes, while the code that published goes on as if all were well. It
also takes the confirm for success: an unroutable message is confirmed, too, after its return. Here each
publish ends in its own return.
"""

import asyncio

from warren.sdk import App, Unroutable

app = App()


async def main() -> None:
    app.on_return(lambda returned: print("for who did not await:", returned.body.decode()))
    async with app:
        try:
            await app.publish(b"a letter", exchange="amq.direct", key="literature.nowhere", message_id="m1")
        except Unroutable as error:
            print(error.reply_code, error.reply_text, error.routing_key, error.properties["message_id"])


if __name__ == "__main__":
    asyncio.run(main())
