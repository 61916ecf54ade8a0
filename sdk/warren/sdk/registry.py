"""The topology of one App: what has been named so far, and how it is declared or checked on a broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from warren.sdk.comparison import differences
from warren.sdk.declaring import Form, Runner, declaration, identity, label, rank
from warren.sdk.errors import ConfigError, TopologyMismatch
from warren.sdk.logs import log
from warren.sdk.topology import Binding, Declarable, Exchange, Queue, closure

DeclarePolicy = Literal["always", "never"]
MismatchPolicy = Literal["fail", "adopt"]


class Registry:
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

    def add(self, items: Iterable[Declarable]) -> list[Declarable]:
        """Register; returns what is new or changed.

        :raises ConfigError: if a name already stands for something else.
        """
        new: list[Declarable] = []
        for item in items:
            known = self._named.get(identity(item))
            if known == item or (known is not None and _only_defaults(item)):
                continue
            if known is not None and not _only_defaults(known):
                raise ConfigError(
                    f"{label(item)} is declared twice with different arguments: {known} and {item}"
                )
            self._named[identity(item)] = item
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
        kept = [item for item in named if not (identity(item) in dead and _only_defaults(item))]
        return {identity(item): item for item in (*closure(kept), *kept)}

    async def add_and_declare(self, runner: Runner, items: Iterable[Declarable]) -> None:
        """`add`, and on the broker before it returns, also if another task is about to declare the same.

        What the broker refuses is forgotten again, so that it does not stand in the way of the next reconnect.
        """
        items = list(items)
        new = self.add(items)
        resolved = self._resolved()
        wanted = {identity(item) for item in closure(items)}
        try:
            await self.declare(runner, [item for key, item in resolved.items() if key in wanted])
        except TopologyMismatch:
            for item in new:
                self._named.pop(identity(item), None)
            raise

    def queue(self, name: str) -> Queue:
        """The queue of that name as it is registered, else as it is by default."""
        item = self._resolved().get(("queue", name))
        return item if isinstance(item, Queue) else Queue(name)

    async def declare_all(self, runner: Runner) -> None:
        await self.declare(runner, self.items())

    async def declare_shared(self, runner: Runner) -> None:
        """All but what belongs to one connection alone: exclusive queues, and what binds them."""
        items = self.items()
        own = {item.name for item in items if isinstance(item, Queue) and item.exclusive}
        await self.declare(runner, [item for item in items if not _concerns(item, own)])

    async def declare(self, runner: Runner, items: Iterable[Declarable]) -> None:
        """Declare the items, or with `declare="never"` check that they exist (bindings cannot be checked).

        :raises TopologyMismatch: what is missing; or all that differs, unless the policy is `adopt`.
        """
        ordered = sorted(items, key=rank)
        if self._policy == "never":
            await self._check(runner, [item for item in ordered if not isinstance(item, Binding)])
            return
        for item in ordered:
            try:
                await runner.run(f"cannot declare {label(item)}", declaration(item))
            except TopologyMismatch as error:
                if isinstance(item, Binding) or error.reply_code != 406:
                    raise
                await self._differs(runner, item, error)

    async def _differs(self, runner: Runner, item: Exchange | Queue, error: TopologyMismatch) -> None:
        found = await differences(runner, item)
        if self._mismatch == "adopt" and found:
            log.warning(
                "taken as it is on the broker: item=%s differences=%s",
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

    async def _check(self, runner: Runner, items: Iterable[Exchange | Queue]) -> None:
        missing = []
        for item in items:
            try:
                await runner.run(f"cannot check {label(item)}", Form.of(item).look)
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


def _concerns(item: Declarable, queues: set[str]) -> bool:
    match item:
        case Queue():
            return item.name in queues
        case Binding():
            return not item.to_exchange and item.destination in queues
        case _:
            return False


def _only_defaults(item: Declarable) -> bool:
    return not isinstance(item, Binding) and item == type(item)(item.name)
