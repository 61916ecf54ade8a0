"""Several hosts, a callback for state changes, and an HTTP health probe."""

import asyncio
import json

from warren.broker import Broker
from warren.sdk import App, HealthProbe, State


async def main() -> None:
    async with Broker() as broker:
        # Nodes of one cluster, tried in this order until one accepts the connection.
        app = App(["amqp://127.0.0.1:1/", broker.url], hosts="given")
        probe = HealthProbe(0)  # any free port; 8080 by default
        app.include(probe)

        @app.on_state
        def changed(state: State) -> None:
            print("state:", state.value)

        @app.handle(bytes, queue="connections.demo")
        async def work(body: bytes) -> None: ...

        async with app:
            reader, writer = await asyncio.open_connection("127.0.0.1", probe.port)
            writer.write(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            print("probe:", head.split(b"\r\n")[0].decode(), json.loads(body)["waiting"])


if __name__ == "__main__":
    asyncio.run(main())
