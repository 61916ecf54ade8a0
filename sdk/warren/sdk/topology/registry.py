"""Topology registry: the declared topology of one App, and its declaration or check on a broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Literal, Protocol

from warren.sdk.choices import check_choice
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
    """Runs a group of methods on one connection; if it is lost meanwhile, runs the whole group on the next one."""

    async def run(self, methods: Callable[[MethodRunner], Awaitable[None]], /) -> None: ...


class TopologyRegistry:
    """Declared exchanges, queues and bindings of an App; two items of one kind with the same name must be equal.

    As an exception, an item with defaults only (`Queue("billing")`) is replaced by one with arguments.

    :param policy: `always` declares missing items, `never` only checks that they exist.
    :param mismatch: treatment of an item that exists with other arguments: `fail`
        raises an error, `adopt` uses it unchanged.
    :raises ConfigError: if one of them is another word.
    """

    def __init__(self, policy: DeclarePolicy, mismatch: MismatchPolicy = "fail") -> None:
        check_choice("declare", policy, DeclarePolicy)
        check_choice("mismatch", mismatch, MismatchPolicy)
        self._policy = policy
        self._mismatch = mismatch
        self._named: dict[object, Declarable] = {}
        self._holders: dict[object, int] = {}
        """Number of holders of each item that was added by `hold_and_declare` only."""

    @property
    def declares(self) -> bool:
        """True if missing items are declared; otherwise they are an error."""
        return self._policy == "always"

    def add(self, items: Iterable[Declarable]) -> None:
        """Register exchanges, queues and bindings, to be declared on each connection.

        :raises ConfigError: if an item of that kind and name is registered with other arguments.
        """
        items = list(items)
        self._named = self._with(items)
        for item in items:
            self._holders.pop(identity(item), None)

    def release(self, items: Iterable[Declarable]) -> None:
        """Remove items that were added by `hold_and_declare`, except those that something else in the App needs. They stay
        on the broker.
        """
        for item in items:
            key = identity(item)
            if key in self._holders:
                self._holders[key] -= 1
                if not self._holders[key]:
                    del self._holders[key]
                    self._named.pop(key, None)

    def explicit_items(self) -> tuple[Declarable, ...]:
        """Return the registered items without the dead letter topology that their queues have by default."""
        return tuple(self._named.values())

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
        """Return all registered exchanges, queues and bindings, and the dead
        letter topology that the queues have by default.

        That is the exchange `warren.dead`, and a queue `<name>.dead` for each queue that dead-letters to it.
        """
        return tuple(_with_implied(self._named.values()).values())

    async def add_and_declare(self, link: ReconnectingRunner, items: Iterable[Declarable]) -> None:
        """Declare items on the broker, then register them, so that each later connection declares them again.

        Returns when the broker has them, also if another task declares the same. They are registered only after the
        broker has accepted them: otherwise an item that it refuses would make each later connection fail too.

        :param link: connection that declares the items; on a lost connection it repeats that on the next one.
        :raises ConfigError: if an item of that kind and name is registered with other arguments.
        :raises TopologyMismatch: if the broker has an item with other arguments, or refuses it.
        :raises TransportUnavailable: if the connection is closed for good.
        """
        items = list(items)
        await self._declare_new(link, items)
        self.add(items)

    async def hold_and_declare(self, link: ReconnectingRunner, items: Iterable[Declarable]) -> None:
        """Declare items on the broker, and register them until `release`; like `add_and_declare` otherwise.

        If it fails or is cancelled, the items are registered nevertheless: `release` them.
        """
        items = list(items)
        named = self._with(items)
        for item in items:
            key = identity(item)
            if key in self._holders or key not in self._named:
                self._holders[key] = self._holders.get(key, 0) + 1
        self._named = named
        await self._declare_new(link, items)

    async def _declare_new(self, link: ReconnectingRunner, items: list[Declarable]) -> None:
        items = [*items, *self._bound_to(items)]
        wanted = {identity(item) for item in with_implied_topology(items)}

        def declare(runner: MethodRunner) -> Awaitable[None]:
            resolved = _with_implied(self._with(items).values())
            return self.declare(runner, [item for key, item in resolved.items() if key in wanted])

        await link.run(declare)

    def _bound_to(self, items: Iterable[Declarable]) -> list[Declarable]:
        """Return the registered bindings of these exchanges, and the exchanges and queues that are bound by them.

        An exchange that was deleted and is declared again has lost its bindings. Items that the broker deletes by itself
        are left out.
        """
        sources = {item.name for item in items if isinstance(item, Exchange)}
        found: list[Declarable] = []
        for item in self._named.values():
            if isinstance(item, Binding) and item.source in sources:
                end = self._named.get(("exchange" if item.to_exchange else "queue", item.destination))
                if end is not None and not _is_temporary(end):
                    found += [item, end]
        return found

    def route(self, exchange: str, key: str) -> tuple[Declarable, ...]:
        """Return the registered items through which a message with this exchange and routing key passes: the exchange, the
        queues and exchanges that are bound to it, directly or through others, and all bindings that end at one of them, with
        their exchanges.

        The result is empty with the policy `never`, and leaves out what the broker deletes by itself: exclusive queues, and
        items with `auto_delete` or `expires`. With the default exchange the route is the queue `key`. With
        another exchange it has the queues of all bindings, whatever their keys.

        :param exchange: empty for the queue `key`.
        """
        if not self.declares:
            return ()
        items = self.items()
        temporary = {identity(item) for item in items if _is_temporary(item)}
        bindings = [
            item
            for item in items
            if isinstance(item, Binding)
            and ("exchange" if item.to_exchange else "queue", item.destination) not in temporary
        ]
        exchanges, queues = ({exchange}, set[str]()) if exchange else (set[str](), {key})
        unvisited = list(exchanges)
        while unvisited:
            source = unvisited.pop()
            for binding in bindings:
                ends = exchanges if binding.to_exchange else queues
                if binding.source == source and binding.destination not in ends:
                    ends.add(binding.destination)
                    if binding.to_exchange:
                        unvisited.append(binding.destination)
        sources = {item.source for item in bindings if _is_part_of(item, exchanges, queues)}
        exchanges |= sources
        return tuple(
            item for item in items if identity(item) not in temporary and _is_part_of(item, exchanges, queues)
        )

    def queue(self, name: str) -> Queue:
        """Return the registered queue of that name, otherwise one with defaults."""
        item = _with_implied(self._named.values()).get(("queue", name))
        return item if isinstance(item, Queue) else Queue(name)

    async def declare_all(self, runner: MethodRunner) -> None:
        """Declare all registered exchanges, queues and bindings; with the policy `never`, check that they exist."""
        await self.declare(runner, self.items())

    async def declare_shared(self, runner: MethodRunner) -> None:
        """Declare all registered items except exclusive queues and their bindings.

        Only the connection that declares an exclusive queue may consume it, so the consuming connection declares these.
        """
        items = self.items()
        own = {item.name for item in items if isinstance(item, Queue) and item.exclusive}
        await self.declare(runner, [item for item in items if not _belongs_to(item, own)])

    async def declare(self, runner: MethodRunner, items: Iterable[Declarable]) -> None:
        """Declare the items, or with the policy `never` check that they exist (bindings cannot be checked).

        :raises TopologyMismatch: with the missing items; or with all differences, unless `mismatch` is `adopt`.
        """
        ordered = sorted(items, key=declaration_order)
        if self._policy == "never":
            await self.check(runner, [item for item in ordered if not isinstance(item, Binding)])
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
            # Nothing differs: the broker refuses the arguments.
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
            f"{error}{further} (`warren topology plan` shows what to do; App(mismatch='adopt') uses it unchanged)",
            reply_code=406,
            differences=found,
        ) from error

    async def check(self, runner: MethodRunner, items: Iterable[Exchange | Queue]) -> None:
        """Check that exchanges and queues exist, with any arguments.

        :raises TopologyMismatch: names those that do not exist.
        """
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
                f"missing on the broker: {', '.join(missing)}; `warren topology apply MODULE:APP` declares them,"
                " and so does the start of an App with declare='always' (the default), or `warren publish --declare`",
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


def _is_temporary(item: Declarable) -> bool:
    """Return whether the broker deletes the exchange or queue by itself: with its connection, its last consumer or its last
    binding, or after some time without use.
    """
    match item:
        case Exchange():
            return item.auto_delete
        case Queue():
            return item.exclusive or item.auto_delete or item.expires is not None
        case Binding():
            return False


def _is_part_of(item: Declarable, exchanges: set[str], queues: set[str]) -> bool:
    """Return whether the item is one of these exchanges or queues, or a binding that ends at one of them."""
    match item:
        case Exchange():
            return item.name in exchanges
        case Queue():
            return item.name in queues
        case Binding():
            return item.destination in (exchanges if item.to_exchange else queues)


def _only_defaults(item: Declarable) -> bool:
    return not isinstance(item, Binding) and item == type(item)(item.name)


def _with_implied(named: Collection[Declarable]) -> dict[object, Declarable]:
    """Return the items and the default dead letter topology of their queues, by `identity`.

    A handler for dead letters declares its queue with defaults only. If another queue implies the same dead letter
    queue, the implied declaration is used instead.
    """
    implied = {item.dead_letter_queue for item in named if isinstance(item, Queue)}
    dead = {("queue", queue.name) for queue in implied if queue is not None}
    kept = [item for item in named if not (identity(item) in dead and _only_defaults(item))]
    return {identity(item): item for item in (*with_implied_topology(kept), *kept)}
