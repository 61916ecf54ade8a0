"""`NaturallyIdempotent`: declares that a handler needs no protection, because running it twice has the effect of running
it once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from warren.sdk import App, Delivery


class _NaturallyIdempotent:
    """Marker `once=NaturallyIdempotent` for a handler whose repetition has no further effect, because it sets a value,
    deletes a row or writes under a key.

    It documents this property where readers look for the protection. It stores nothing: a duplicate runs the handler
    again.
    """

    def register(self, app: App) -> None:
        """Do nothing when the App registers the handler: neither a store nor a clock is needed."""

    async def run(self, message: Any, delivery: Delivery, handler: Callable[[], Awaitable[bytes]]) -> bytes:
        """Run the handler without any protection, and return its encoded result; message and delivery are not used."""
        return await handler()

    async def on_stop(self) -> None:
        """Do nothing when the App stops: there is no connection, file or task to close."""

    def __repr__(self) -> str:
        return "NaturallyIdempotent"


NaturallyIdempotent: Final[_NaturallyIdempotent] = _NaturallyIdempotent()
"""Value for `once=`: the handler has the same effect however often it runs, and no store is needed."""

__all__ = ["NaturallyIdempotent"]
