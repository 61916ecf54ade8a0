"""Natural: the word for a handler that needs no protection, because running it twice does what running it once does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from warren.sdk import App, Delivery


class _NaturallyIdempotent:
    """`once=NaturallyIdempotent`: idempotent by nature (it sets a value, deletes a row, writes under a key), said where others look
    for the protection. It costs nothing and keeps nothing: a duplicate runs the handler again."""

    def register(self, app: App) -> None:
        """Nothing to take from the App."""

    async def run(self, message: Any, delivery: Delivery, handler: Callable[[], Awaitable[bytes]]) -> bytes:
        return await handler()

    async def on_stop(self) -> None:
        """Nothing to close."""

    def __repr__(self) -> str:
        return "Natural"


NaturallyIdempotent: Final[_NaturallyIdempotent] = _NaturallyIdempotent()

__all__ = ["NaturallyIdempotent"]
