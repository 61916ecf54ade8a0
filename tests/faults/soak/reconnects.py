"""1,000 lost connections under load: no message is lost, and no task, channel, file descriptor or memory leaks."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

from aiormq.abc import AbstractChannel, AbstractConnection

from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from warren.sdk import App, Command, Queue

RECONNECTS = 1000
WARM = 20
EACH = 20
ALLOWED = {"bytes": 4 * 1024 * 1024, "channels": 10, "connections": 10}
"""Allowed growth: fragmented memory, and channels that workers keep from their last delivery."""
BYTES_EACH = 1024
"""Further allowed bytes for each reconnect, much less than a connection needs."""


class Count(Command, queue=Queue("soak.reconnects", type="classic", dead_letter_exchange=None)):
    number: int


def soak(share: float, random: Random, folder: Path) -> list[str]:
    with BrokerProcess(folder) as broker:
        return asyncio.run(_soak(broker.url, max(30, round(RECONNECTS * share)), random))


async def _soak(url: str, reconnects: int, random: Random) -> list[str]:
    handled = bytearray((reconnects + WARM) * EACH)
    async with Proxy(url) as proxy:
        app = App(proxy.url, first_retry=0.001, longest_retry=0.01)

        @app.handle(Count)
        async def count(message: Count) -> None:
            handled[message.number] = 1

        async with app:
            sent = 0
            first: dict[str, int] = {}
            for number in range(reconnects + WARM):
                if number == WARM:
                    first = await _settled(app, proxy)
                publishing = asyncio.create_task(
                    app.publish_many([Count(number=sent + more) for more in range(EACH)])
                )
                sent += EACH
                for _ in range(random.randrange(60)):
                    await asyncio.sleep(0)
                proxy.cut()
                await publishing
                # The connection counts as stable only after a second, which 1,000 of them need not wait for.
                await eventually(lambda: app.ready, "it is ready again")
            last = await _settled(app, proxy)
            await eventually(lambda: all(handled), "all that is confirmed is handled")
            made = app.statistics().reconnects
    for name, before in first.items():
        allowed = ALLOWED.get(name, 0) + (reconnects * BYTES_EACH if name == "bytes" else 0)
        assert last[name] <= before + allowed, (
            f"{name}: {before} before, {last[name]} after {made} reconnects"
        )
    return [
        f"{made} reconnects, {sent} messages published and handled",
        *(f"{name}: {before} after {WARM}, {last[name]} at the end" for name, before in first.items()),
    ]


async def _settled(app: App, proxy: Proxy) -> dict[str, int]:
    """Return the resources in use when nothing is in progress."""
    await eventually(lambda: app.ready and proxy.connections == 2, "there are two connections")
    known = -1
    while known != (known := _count(lambda item: isinstance(item, asyncio.Future))):  # noqa: ASYNC110
        # What has ended takes some turns of the event loop to be gone.
        await asyncio.sleep(0.2)
    return {
        "tasks": len(asyncio.all_tasks()),
        "channels": _count(lambda item: isinstance(item, AbstractChannel)),
        "connections": _count(lambda item: isinstance(item, AbstractConnection)),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "bytes": _resident(),
    }


def _count(chosen: Callable[[object], bool]) -> int:
    gc.collect()
    return sum(1 for item in gc.get_objects() if chosen(item))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
