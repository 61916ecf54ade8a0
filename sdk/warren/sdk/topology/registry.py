"""The topology of one App: what has been named so far, and how it is declared or checked on a broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Literal, Protocol

from warren.sdk.errors import ConfigError, TopologyMismatch
from warren.sdk.logger import log
from warren.sdk.topology.binding import Binding
from warren.sdk.topology.declarable import (
    Declarable,
    declaration_order,
    identity,
    label,
    with_implied_topology,
)
from warren.sdk.topology.declarations import Declaration, MethodRunner, declare_method
from warren.sdk.topology.exchange import Exchange
from warren.sdk.topology.mismatch import differences
from warren.sdk.topology.queue import Queue

DeclarePolicy = Literal["always", "never"]
MismatchPolicy = Literal["fail", "adopt"]


class ReconnectingRunner(Protocol):
    """Runs methods on one connection, and all of them on the next one if it is lost meanwhile."""

    async def run(self, methods: Callable[[MethodRunner], Awaitable[None]], /) -> None: ...


class TopologyRegistry:
    """Values by name; the same name must mean the same thing.

    A value that has only defaults (`Queue("billing")`) gives way to one that says more.
    """

    def __init__(self, policy: DeclarePolicy, mismatch: MismatchPolicy = "fail") -> None:
        self._policy = policy
        self._mismatch = mismatch
        self._named: dict[object, Declarable] = {}

    @property
    def declares(self) -> bool:
        """What is not there is made; else that is an error."""
        return self._policy == "always"

    def add(self, items: Iterable[Declarable]) -> None:
        """Register.

        :raises ConfigError: if a name already stands for something else.
        """
        self._named = self._with(items)

    def _with(self, items: Iterable[Declarable]) -> dict[object, Declarable]:
        named = dict(self._named)
        for item in items:
            known = named.get(identity(item))
            if known == item or (known is not None and _only_defaults(item)):
                continue
            if known is not None and not _only_defaults(known):
                raise ConfigError(
                    f"{label(item)} is declared twice with different arguments: {known} and {item}"
                )
            named[identity(item)] = item
        return named

    def items(self) -> tuple[Declarable, ...]:
        """All that is declared: what was named, and the dead letter queues that this implies."""
        return tuple(_with_implied(self._named.values()).values())

    async def add_and_declare(self, link: ReconnectingRunner, items: Iterable[Declarable]) -> None:
        """`add`, and on the broker before it returns, also if another task is about to declare the same.

        What is registered is declared on each connection to come, so that is done only when the broker has taken it: what it
        refuses, or ends the connection over, must not stand in the way of the next one.

        :raises ConfigError: as `add`. :raises WarrenError: as `declare` and `ReconnectingRunner.use`.
        """
        items = list(items)
        wanted = {identity(item) for item in with_implied_topology(items)}

        def declare(runner: MethodRunner) -> Awaitable[None]:
            resolved = _with_implied(self._with(items).values())
            return self.declare(runner, [item for key, item in resolved.items() if key in wanted])

        await link.run(declare)
        self.add(items)

    def queue(self, name: str) -> Queue:
        """The queue of that name as it is registered, else as it is by default."""
        item = _with_implied(self._named.values()).get(("queue", name))
        return item if isinstance(item, Queue) else Queue(name)

    async def declare_all(self, runner: MethodRunner) -> None:
        await self.declare(runner, self.items())

    async def declare_shared(self, runner: MethodRunner) -> None:
        """All but what belongs to one connection alone: exclusive queues, and what binds them."""
        items = self.items()
        own = {item.name for item in items if isinstance(item, Queue) and item.exclusive}
        await self.declare(runner, [item for item in items if not _belongs_to(item, own)])

    async def declare(self, runner: MethodRunner, items: Iterable[Declarable]) -> None:
        """Declare the items, or with `declare="never"` check that they exist (bindings cannot be checked).

        :raises TopologyMismatch: what is missing; or all that differs, unless the policy is `adopt`.
        """
        ordered = sorted(items, key=declaration_order)
        if self._policy == "never":
            await self._check(runner, [item for item in ordered if not isinstance(item, Binding)])
            return
        for item in ordered:
            try:
                await runner.run(f"cannot declare {label(item)}", declare_method(item))
            except TopologyMismatch as error:
                if isinstance(item, Binding) or error.reply_code != 406:
                    raise
                await self._handle_mismatch(runner, item, error)

    async def _handle_mismatch(
        self, runner: MethodRunner, item: Exchange | Queue, error: TopologyMismatch
    ) -> None:
        try:
            found = await differences(runner, item)
        except TopologyMismatch:
            # Nothing that differs: the broker takes no such thing.
            raise error from None
        if self._mismatch == "adopt" and found:
            log.warning(
                "event=topology.mismatch_adopted item=%s differences=%s",
                label(item),
                "; ".join(map(str, found)),
            )
            return
        further = "".join(f"; {each}" for each in found[1:])
        raise TopologyMismatch(
            f"{error}{further} (`warren topology plan` says what to do; App(mismatch='adopt') takes it as it is)",
            reply_code=406,
            differences=found,
        ) from error

    async def _check(self, runner: MethodRunner, items: Iterable[Exchange | Queue]) -> None:
        missing = []
        for item in items:
            try:
                await runner.run(f"cannot check {label(item)}", Declaration.of(item).check_exists)
            except TopologyMismatch as error:
                if error.reply_code != 404:
                    raise
                missing.append(label(item))
        if missing:
            raise TopologyMismatch(
                f"missing on the broker: {', '.join(missing)}; `warren topology apply MODULE:APP` makes them,"
                " or a start with declare='always'",
                reply_code=404,
            )


def _belongs_to(item: Declarable, queues: set[str]) -> bool:
    match item:
        case Queue():
            return item.name in queues
        case Binding():
            return not item.to_exchange and item.destination in queues
        case _:
            return False


def _only_defaults(item: Declarable) -> bool:
    return not isinstance(item, Binding) and item == type(item)(item.name)


def _with_implied(named: Collection[Declarable]) -> dict[object, Declarable]:
    """With what they imply; a queue of defaults that is also an implied dead letter queue (of a handler for it) is that."""
    implied = {item.dead_letter_queue for item in named if isinstance(item, Queue)}
    dead = {("queue", queue.name) for queue in implied if queue is not None}
    kept = [item for item in named if not (identity(item) in dead and _only_defaults(item))]
    return {identity(item): item for item in (*with_implied_topology(kept), *kept)}
