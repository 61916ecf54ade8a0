"""Shovels of a broker: started when they are defined, connected again after a failure, stopped when they are deleted."""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from warren.broker.model.operator_errors import ObjectNotFound, OperationRefused
from warren.broker.model.policy.runtime_parameters import SHOVEL
from warren.broker.shovel.definition import (
    DELETE_AFTER_FLOOR,
    ShovelDefinition,
    definition_errors,
    parse_definition,
)
from warren.broker.shovel.transfer import Transfer, TransferFailed
from warren.core.erlang_terms import ErlangString, format_term

if TYPE_CHECKING:
    from warren.broker.connection.broker_node import BrokerNode
    from warren.broker.model.clock import Clock
    from warren.broker.model.policy.runtime_parameters import RuntimeParameters

logger = logging.getLogger(__name__)

Json: TypeAlias = Any
Key: TypeAlias = tuple[bytes, str]
"""Virtual host and name of a shovel."""


class ShovelState(enum.Enum):
    """State of a shovel, in RabbitMQ's words."""

    STARTING = "starting"
    RUNNING = "running"
    TERMINATED = "terminated"


class Shovel:
    """One shovel: its task, its state, and the transfer that it runs at the moment.

    :param definition: parsed definition; None if the stored one is not valid.
    :param on_finished: called when the shovel has forwarded all that it should.
    """

    def __init__(
        self,
        shovels: Shovels,
        key: Key,
        definition: ShovelDefinition | None,
        on_finished: Callable[[], None],
    ) -> None:
        self.vhost = key[0].decode("utf-8", "surrogateescape")
        self.name = key[1]
        self.definition = definition
        self.transfer: Transfer | None = None
        """Transfer that runs; None in any other state than RUNNING."""
        self.state = ShovelState.STARTING
        self.reason = ""
        """Reason of the state TERMINATED, as RabbitMQ words it."""
        self.changed_at = 0.0
        """Unix time at which the state changed."""
        self._shovels = shovels
        self._key = key
        self._on_finished = on_finished
        self._task: asyncio.Task[None] | None = None
        self._enter(ShovelState.STARTING)

    def start(self, after: asyncio.Task[None] | None) -> None:
        """Start the shovel's task.

        :param after: task of an earlier shovel of this name, which ends first.
        """
        self._task = self._shovels.node.loop.create_task(self._supervise(after))

    def cancel(self) -> asyncio.Task[None] | None:
        """Stop the shovel, unless it has finished; return its task, which ends when its connections are closed."""
        task = self._task
        if task is not None and task is not asyncio.current_task():
            logger.info("event=shovel.stopped shovel=%r vhost=%r", self.name, self.vhost)
            task.cancel()
        return task

    async def _supervise(self, after: asyncio.Task[None] | None) -> None:
        """Run transfers, one after the other, until the shovel is stopped, has finished, or does not reconnect."""
        if after is not None:
            await asyncio.wait([after])
        definition = self.definition
        if definition is None:
            self._enter(ShovelState.TERMINATED, "failed to parse configuration")
            return
        while True:
            self._enter(ShovelState.STARTING)
            try:
                if await self._transfer(definition):
                    logger.info("event=shovel.finished shovel=%r vhost=%r", self.name, self.vhost)
                    self._on_finished()
                    return
            except TransferFailed as failure:
                logger.warning(
                    "event=shovel.failed shovel=%r vhost=%r reason=%r detail=%r retry_s=%d",
                    self.name,
                    self.vhost,
                    str(failure),
                    failure.detail,
                    definition.reconnect_delay,
                )
                self._enter(ShovelState.TERMINATED, str(failure))
            except Exception:
                logger.exception("event=shovel.crashed shovel=%r vhost=%r", self.name, self.vhost)
                self._enter(ShovelState.TERMINATED, "internal error")
            if not definition.reconnect_delay:
                return
            await self._shovels.sleep(definition.reconnect_delay)

    async def _transfer(self, definition: ShovelDefinition) -> bool:
        """Run one transfer; return True if it has forwarded all that it should.

        :raises TransferFailed: if it cannot start, or a connection is lost.
        """
        shovels = self._shovels
        transfer = Transfer(
            shovels.node, definition, self.name, self.vhost, shovels.cluster_name(), shovels.clock
        )
        try:
            await transfer.start()
            self.transfer = transfer
            self._enter(ShovelState.RUNNING)
            duration = definition.source.delete_after_seconds
            if duration is not None and duration < DELETE_AFTER_FLOOR:
                logger.warning(
                    "event=shovel.duration_raised shovel=%r vhost=%r seconds=%d floor=%d",
                    self.name,
                    self.vhost,
                    duration,
                    DELETE_AFTER_FLOOR,
                )
            logger.info(
                "event=shovel.started shovel=%r vhost=%r source=%r destination=%r",
                self.name,
                self.vhost,
                transfer.uris[0],
                transfer.uris[1],
            )
            await transfer.run()
        finally:
            self.transfer = None
            await _finish(self._shovels.node.loop.create_task(transfer.close()))
        return True

    def _enter(self, state: ShovelState, reason: str = "") -> None:
        self.state, self.reason = state, reason
        self.changed_at = time.time()
        events = self._shovels.node.virtual_hosts.events
        if events is not None:
            fields = {"name": self.name, "vhost": self.vhost, "status": state.value}
            if reason:
                fields["reason"] = reason
            events.emit("shovel.worker.status", {**fields}, has_actor=False)

    # -- status

    def status(self) -> dict[str, Json]:
        """Return the status as RabbitMQ's HTTP API shows it, without the name of the node."""
        found: dict[str, Json] = {
            "timestamp": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.changed_at)),
            "name": self.name,
            "vhost": self.vhost,
            "type": "dynamic",
        }
        transfer, definition = self.transfer, self.definition
        if self.state is ShovelState.TERMINATED:
            return found | {"state": self.state.value, "reason": format_term(ErlangString(self.reason))}
        if transfer is None or definition is None:
            return found | {"state": ShovelState.STARTING.value}
        source, destination = definition.source, definition.destination
        found |= {
            "pending": len(transfer.pending),
            "remaining": _limit(transfer.remaining),
            "remaining_unacked": _limit(transfer.remaining_unacked),
            "forwarded": transfer.forwarded,
            "state": transfer.blocked_status,
            "src_uri": transfer.uris[0],
            "src_protocol": source.protocol,
            "dest_protocol": destination.protocol,
            "dest_uri": transfer.uris[1],
        }
        if source.queue:
            found["src_queue"] = _text(source.queue)
        else:
            found["src_exchange"] = _text(source.exchange)
            found["src_exchange_key"] = _text(source.exchange_key)
        for name, value in (
            ("dest_exchange", destination.exchange),
            ("dest_exchange_key", destination.exchange_key),
            ("dest_queue", destination.queue),
        ):
            if value is not None:
                found[name] = _text(value)
        return found | {"blocked_status": transfer.blocked_status}


class Shovels:
    """Shovels of one broker, by virtual host and name. They follow the runtime parameters of the component `shovel`."""

    def __init__(
        self, node: BrokerNode, parameters: RuntimeParameters, clock: Clock, default_cluster: str
    ) -> None:
        """:param default_cluster: name of the cluster if no global parameter names it"""
        self.node = node
        self.clock = clock
        self._default_cluster = default_cluster
        self._parameters = parameters
        self._shovels: dict[Key, Shovel] = {}
        self._ending: dict[Key, asyncio.Task[None]] = {}
        """Tasks of shovels that were stopped, and whose connections are not closed yet."""

    def all(self) -> list[Shovel]:
        """Return all shovels, in the order of their virtual hosts and names."""
        return [self._shovels[key] for key in sorted(self._shovels)]

    def find(self, vhost: bytes, name: str) -> Shovel | None:
        """Return a shovel; None if there is none of this name."""
        return self._shovels.get((vhost, name))

    def apply(self, vhost: bytes, name: str) -> None:
        """Start, restart or stop a shovel, as its runtime parameter says."""
        key = (vhost, name)
        self._end(key)
        stored = (vhost, SHOVEL, name)
        if stored not in self._parameters.stored:
            return
        value = self._parameters.stored[stored]
        errors = definition_errors(name, value)
        if errors:
            logger.error(
                "event=shovel.definition_invalid shovel=%r vhost=%r errors=%d",
                name,
                vhost.decode("utf-8", "surrogateescape"),
                len(errors),
            )
        definition = None if errors else parse_definition(value)
        shovel = Shovel(self, key, definition, lambda: self._on_finished(key))
        self._shovels[key] = shovel
        shovel.start(self._ending.get(key))

    def restart(self, vhost: bytes, name: str) -> None:
        """Close the connections of a shovel, and open them again.

        :raises ObjectNotFound: if there is no such shovel.
        """
        if (vhost, name) not in self._shovels:
            raise ObjectNotFound("the shovel does not exist")
        self.apply(vhost, name)

    def delete(self, vhost: bytes, name: str, *, force: bool = False) -> None:
        """Delete the definition of a shovel, which ends it.

        :param force: True to delete a protected one, too.
        :raises OperationRefused: if it is protected.
        :raises ObjectNotFound: if there is no such shovel.
        """
        value = self._parameters.stored.get((vhost, SHOVEL, name))
        if isinstance(value, dict) and value.get("internal") is True and not force:
            shown = vhost.decode("utf-8", "surrogateescape")
            raise OperationRefused(f"Cannot delete protected shovel '{name}' in virtual host '{shown}'.")
        self._parameters.clear(vhost, SHOVEL, name)

    def _on_finished(self, key: Key) -> None:
        """Delete the definition of a shovel that has forwarded all that it should."""
        if (key[0], SHOVEL, key[1]) in self._parameters.stored:
            self._parameters.clear(key[0], SHOVEL, key[1])

    def _end(self, key: Key) -> None:
        shovel = self._shovels.pop(key, None)
        task = shovel.cancel() if shovel is not None else None
        if shovel is None or task is None:
            return
        events = self.node.virtual_hosts.events
        if events is not None:
            events.emit(
                "shovel.worker.removed", {"name": shovel.name, "vhost": shovel.vhost}, has_actor=False
            )
        if task.done():
            return
        self._ending[key] = task
        task.add_done_callback(lambda done: self._forget(key, done))

    def _forget(self, key: Key, task: asyncio.Task[None]) -> None:
        if self._ending.get(key) is task:
            del self._ending[key]

    def cluster_name(self) -> str:
        """Return the name of the broker's cluster, for forward headers."""
        found = self._parameters.globals.get("cluster_name")
        return found if isinstance(found, str) else self._default_cluster

    async def sleep(self, seconds: float) -> None:
        """Wait by the broker's clock."""
        over: asyncio.Future[None] = self.node.loop.create_future()

        def end() -> None:
            if not over.done():
                over.set_result(None)

        timer = self.clock.call_at(self.clock.now() + seconds, end)
        try:
            await over
        finally:
            timer.cancel()

    async def stop(self) -> None:
        """Stop all shovels, and wait until their connections are closed."""
        for key in list(self._shovels):
            self._end(key)
        if self._ending:
            await asyncio.wait(list(self._ending.values()))


async def _finish(closing: asyncio.Task[None]) -> None:
    """Wait for a task also if this one is cancelled meanwhile: connections are never left half closed."""
    cancelled = False
    while not closing.done():
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            cancelled = True
    closing.result()
    if cancelled:
        raise asyncio.CancelledError


def _limit(count: int | None) -> int | str:
    return "unlimited" if count is None else count


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
