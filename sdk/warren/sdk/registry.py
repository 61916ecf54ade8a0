"""The topology of one App: what has been named so far, and how it is declared or checked on a broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, Protocol

from aiormq.abc import AbstractChannel

from warren.sdk.errors import ConfigError, TopologyMismatch
from warren.sdk.topology import Binding, Declarable, Exchange, Queue, closure

DeclarePolicy = Literal["always", "never"]


class Runner(Protocol):
    """Runs one synchronous method; `Control` and `Link` do."""

    async def run(self, what: str, method: Callable[[AbstractChannel], Awaitable[Any]], /) -> Any: ...


class Registry:
    """Values by name; the same name must mean the same thing.

    A value that has only defaults (`Queue("billing")`) gives way to one that says more.
    """

    def __init__(self, policy: DeclarePolicy) -> None:
        self._policy = policy
        self._named: dict[object, Declarable] = {}

    def add(self, items: Iterable[Declarable]) -> list[Declarable]:
        """Register; returns what is new or changed.

        :raises ConfigError: if a name already stands for something else.
        """
        new: list[Declarable] = []
        for item in items:
            identity = _identity(item)
            known = self._named.get(identity)
            if known == item or (known is not None and _only_defaults(item)):
                continue
            if known is not None and not _only_defaults(known):
                raise ConfigError(
                    f"{_name(item)} is declared twice with different arguments: {known} and {item}"
                )
            self._named[identity] = item
            new.append(item)
        return new

    def items(self) -> tuple[Declarable, ...]:
        """All that is declared: what was named, and the dead letter queues that this implies."""
        return tuple(self._resolved().values())

    def _resolved(self) -> dict[object, Declarable]:
        """A queue of defaults that is also an implied dead letter queue (of a handler for it) is the latter."""
        named = self._named.values()
        implied = {item.dead_letter_queue for item in named if isinstance(item, Queue)}
        dead = {("queue", queue.name) for queue in implied if queue is not None}
        kept = [item for item in named if not (_identity(item) in dead and _only_defaults(item))]
        return {_identity(item): item for item in (*closure(kept), *kept)}

    async def add_and_declare(self, runner: Runner, items: Iterable[Declarable]) -> None:
        """`add`, and on the broker before it returns, also if another task is about to declare the same.

        What the broker refuses is forgotten again, so that it does not stand in the way of the next reconnect.
        """
        items = list(items)
        new = self.add(items)
        resolved = self._resolved()
        wanted = {_identity(item) for item in closure(items)}
        try:
            await self.declare(runner, [item for identity, item in resolved.items() if identity in wanted])
        except TopologyMismatch:
            for item in new:
                self._named.pop(_identity(item), None)
            raise

    def queue(self, name: str) -> Queue:
        """The queue of that name as it is registered, else as it is by default."""
        item = self._resolved().get(("queue", name))
        return item if isinstance(item, Queue) else Queue(name)

    async def declare_all(self, runner: Runner) -> None:
        await self.declare(runner, self.items())

    async def declare(self, runner: Runner, items: Iterable[Declarable]) -> None:
        """Declare the items, or with `declare="never"` check that they exist (bindings cannot be checked).

        :raises TopologyMismatch: what is missing, or differs.
        """
        ordered = sorted(items, key=_rank)
        if self._policy == "always":
            for item in ordered:
                await runner.run(f"cannot declare {_name(item)}", _declaration(item))
            return
        missing = []
        for item in ordered:
            if isinstance(item, Binding):
                continue
            try:
                await runner.run(f"cannot check {_name(item)}", _check(item))
            except TopologyMismatch as error:
                if error.reply_code != 404:
                    raise
                missing.append(_name(item))
        if missing:
            raise TopologyMismatch(
                f"missing on the broker: {', '.join(missing)}; run the App once with declare='always' to make them",
                reply_code=404,
            )


def _identity(item: Declarable) -> object:
    match item:
        case Exchange():
            return ("exchange", item.name)
        case Queue():
            return ("queue", item.name)
        case Binding():
            return (
                "binding",
                item.source,
                item.destination,
                item.key,
                item.to_exchange,
                repr(item.arguments),
            )


def _only_defaults(item: Declarable) -> bool:
    return not isinstance(item, Binding) and item == type(item)(item.name)


def _rank(item: Declarable) -> int:
    return (Exchange, Queue, Binding).index(type(item))


def _name(item: Declarable) -> str:
    match item:
        case Exchange():
            return f"exchange {item.name!r}"
        case Queue():
            return f"queue {item.name!r}"
        case Binding():
            kind = "exchange" if item.to_exchange else "queue"
            return f"the binding of {kind} {item.destination!r} to exchange {item.source!r} with key {item.key!r}"


def _declaration(item: Declarable) -> Callable[[AbstractChannel], Awaitable[Any]]:
    async def method(channel: AbstractChannel) -> None:
        match item:
            case Exchange():
                if item.name:
                    await channel.exchange_declare(
                        item.name,
                        exchange_type=item.type,
                        durable=item.durable,
                        auto_delete=item.auto_delete,
                        internal=item.internal,
                        arguments=item.wire_arguments(),
                    )
            case Queue():
                await channel.queue_declare(
                    item.name,
                    durable=item.durable,
                    exclusive=item.exclusive,
                    auto_delete=item.auto_delete,
                    arguments=item.wire_arguments(),
                )
            case Binding(to_exchange=True):
                await channel.exchange_bind(
                    item.destination, item.source, item.key, arguments=dict(item.arguments)
                )
            case Binding():
                await channel.queue_bind(
                    item.destination, item.source, item.key, arguments=dict(item.arguments)
                )

    return method


def _check(item: Exchange | Queue) -> Callable[[AbstractChannel], Awaitable[Any]]:
    async def method(channel: AbstractChannel) -> None:
        if isinstance(item, Queue):
            await channel.queue_declare(item.name, passive=True)
        elif item.name:
            await channel.exchange_declare(item.name, exchange_type=item.type, passive=True)

    return method
