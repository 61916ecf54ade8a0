"""The clock of the machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from warren.sdk.protocols import Timer


class SystemClock:
    """Real time: `Clock` over `time.time` and the running event loop."""

    def now(self) -> float:
        return time.time()

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(max(0.0, when - time.time()), callback)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
