"""Loss of the connections of an App, which comes back when the test says so."""

from __future__ import annotations

from tests.support.polling import eventually
from tests.support.proxy import Proxy
from warren.sdk import App


class Cut:
    """Cuts the connections of an App, and waits until it has its consumers again."""

    def __init__(self, app: App, proxy: Proxy) -> None:
        self.app, self.proxy = app, proxy

    async def lose(self) -> None:
        """Return when the App has noticed the loss."""
        self.proxy.refuse()
        self.proxy.cut()
        await eventually(lambda: not self.app.ready, "the loss is noticed")

    async def restore(self) -> None:
        """Return when the App is connected again and has its consumers."""
        self.proxy.accept()
        await eventually(lambda: self.app.ready, "it is ready again")

    async def __call__(self) -> None:
        await self.lose()
        await self.restore()
