"""Broker in this process, on an event loop in its own thread, for blocking clients.

Its clock stands still until a test moves it; its disk can be made to fail.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from warren.broker import Broker, BrokerConfig, VirtualClock
from warren.broker.connection.connection import Connection
from warren.broker.connection.event_loop import new_event_loop
from warren.broker.model.vhost.vhost import VirtualHost
from warren.broker.store.file_system.files_protocol import Files

Result = TypeVar("Result")

PATIENCE = 120.0
"""Seconds. On a busy machine, a client or the loop's thread may stand still for a long time."""


class InProcessBroker:
    """`Broker` with a virtual clock. Leaving the `with` block stops it cleanly."""

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        config: BrokerConfig | None = None,
        files: Files | None = None,
        clock: VirtualClock | None = None,
    ) -> None:
        """:param config: anything but the data folder, which `data_dir` names"""
        self.data_dir = data_dir
        self.config = config or BrokerConfig(handshake_timeout=PATIENCE, login_failure_delay=0)
        self.files = files
        self.clock = clock or VirtualClock(patience=60)
        self.broker: Broker | None = None
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        assert self.broker is not None
        return self.broker.url

    @property
    def alarm(self) -> bytes:
        """Reason why publishers are blocked; empty if they are not."""
        assert self.broker is not None
        node = self.broker._node
        assert node is not None
        return self.call(lambda: node.flow.alarm)

    def virtual_host(self, name: bytes = b"/") -> VirtualHost:
        """Return a virtual host. Only functions passed to `call` may change it."""
        assert self.broker is not None
        return self.broker.virtual_hosts.declarations[name].vhost

    def connections(self) -> list[Connection]:
        """Return the broker's ends of its clients' connections, in the order in which they were accepted."""
        assert self.broker is not None
        node = self.broker._node
        assert node is not None
        return self.call(lambda: [each for each in node.connections if isinstance(each, Connection)])

    def start(self) -> None:
        config = replace(self.config, data_dir=self.data_dir)
        broker = Broker(config, clock=self.clock, files=self.files)
        self._run(broker.start())
        self.broker = broker

    def stop(self) -> None:
        broker, self.broker = self.broker, None
        if broker is not None:
            self._run(broker.stop())

    def restart(self) -> None:
        self.stop()
        self.start()

    def crash(self) -> None:
        """Restart from a copy of the current files, as if the process had been killed now."""
        image = self.image()
        self.stop()
        self.data_dir = image
        self.start()

    def image(self, path: Path | None = None) -> Path:
        """Return a copy of the current data folder, as if the process had been killed now.

        :param path: of the copy; None puts it next to the data folder.
        """
        folder = self.data_dir
        assert folder is not None
        image = path or folder.with_name(folder.name + "+")
        self.call(lambda: _copy_files(folder, image))
        return image

    def flush_definitions(self) -> None:
        """Wait until all changes of definitions that were made are on disk."""
        assert self.broker is not None
        definitions = self.broker._definitions
        assert definitions is not None
        self._run(definitions.flush())

    def advance(self, seconds: float) -> None:
        """Advance the clock; all that falls due happens in order."""
        self._run(self.clock.advance(seconds))

    def jump(self, seconds: float) -> None:
        """Advance the clock without firing timers, as on an event loop that is late."""
        self.call(lambda: self.clock.jump(seconds))

    def call(self, function: Callable[[], Result]) -> Result:
        """Call a function on the broker's loop; return its result."""

        async def run() -> Result:
            return function()

        return self._run(run())

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def __enter__(self) -> InProcessBroker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()


def _copy_files(folder: Path | None, image: Path) -> None:
    """Copy a data folder in use, and again if the writer thread removed a file meanwhile: no crash finds half of that."""
    while True:
        try:
            shutil.copytree(str(folder), image, ignore=shutil.ignore_patterns("*.sock"))
        except shutil.Error as error:
            if any(Path(source).exists() for source, *_ in error.args[0]):
                raise
            shutil.rmtree(image)
        else:
            return
