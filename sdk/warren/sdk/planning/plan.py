"""Topology plan: comparison of the declared exchanges, queues and bindings
with a broker, and declaration of missing ones.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import TracebackType

from warren.sdk.errors import TopologyMismatch
from warren.sdk.messages.types import Message
from warren.sdk.planning.broker_listing import Listing
from warren.sdk.planning.definitions import predeclared
from warren.sdk.planning.risks import Risk, apply_policy, risks
from warren.sdk.topology.binding import Binding
from warren.sdk.topology.declarable import (
    Declarable,
    declaration_order,
    identity,
    label,
    with_implied_topology,
)
from warren.sdk.topology.declarations import Declaration, declare_method
from warren.sdk.topology.exchange import Exchange
from warren.sdk.topology.mismatch import Difference, differences
from warren.sdk.topology.queue import Queue
from warren.sdk.topology.queue_roles import QueueRole, role_of
from warren.sdk.topology.registry import MismatchPolicy
from warren.sdk.transport.control_channel import ControlChannel
from warren.sdk.transport.session import Session

BY_POLICY = {
    "x-message-ttl": "message-ttl",
    "x-expires": "expires",
    "x-max-length": "max-length",
    "x-max-length-bytes": "max-length-bytes",
    "x-overflow": "overflow",
    "x-dead-letter-exchange": "dead-letter-exchange",
    "x-dead-letter-routing-key": "dead-letter-routing-key",
    "x-dead-letter-strategy": "dead-letter-strategy",
    "x-delivery-limit": "delivery-limit",
    "alternate-exchange": "alternate-exchange",
}
"""Keys of RabbitMQ policies, by the queue or exchange argument that they can replace. A
policy also changes existing queues and exchanges, except for arguments that they were
declared with (https://www.rabbitmq.com/docs/parameters#policies)."""


class Status(Enum):
    """Result of comparing a declared exchange, queue or binding with the broker.

    The item is present, missing or different, or the comparison is not possible.
    """

    PRESENT = "present"
    MISSING = "missing"
    DIFFERS = "differs"
    UNKNOWN = "unknown"
    """Not comparable: a binding without a listing of the broker, an
    exclusive queue, or a missing permission of the user."""


@dataclass(frozen=True, slots=True)
class Step:
    """Result of comparing one declared exchange, queue or binding with the broker, and advice.

    :ivar differences: arguments and properties with another value on the broker.
    :ivar advice: text on what to do; empty if nothing is to be done.
    """

    item: Declarable
    status: Status
    differences: tuple[Difference, ...] = ()
    advice: str = ""

    @property
    def name(self) -> str:
        """The kind and name of the exchange, queue or binding, such as `queue 'billing'`."""
        return label(self.item)


@dataclass(frozen=True, slots=True)
class Plan:
    """Result of comparing a declared topology with a broker.

    :ivar broker: product and version of the broker.
    :ivar steps: result of each exchange, queue and binding.
    :ivar listed: true if a listing of the broker was given, so that bindings and undeclared items are known.
    :ivar own: queues that exist and are not declared here, and that Warren makes for itself when it needs them, by name
        with their role.
    :ivar undeclared: other exchanges, queues and bindings that exist and are not declared
        here; they may belong to another application.
    """

    broker: str
    steps: tuple[Step, ...]
    listed: bool
    own: Mapping[str, QueueRole]
    undeclared: tuple[Declarable, ...]
    risks: tuple[Risk, ...]

    def of(self, status: Status) -> list[Step]:
        """Return the results (`Step`) with this status."""
        return [step for step in self.steps if step.status is status]

    @property
    def stands(self) -> bool:
        """True if the broker has the declared topology, as far as that can be known.

        Nothing is missing or different, and every exchange and every queue that is not exclusive could be compared.
        Bindings that could not be listed count as present.
        """
        return all(
            step.status is Status.PRESENT
            or (
                step.status is Status.UNKNOWN
                and (isinstance(step.item, Binding) or (isinstance(step.item, Queue) and step.item.exclusive))
            )
            for step in self.steps
        )


class Planner:
    """Compares declared topology with a broker and applies plans, on a connection of its own: `async with Planner(url) as
    planner:`.

    :raises TransportUnavailable: if there is no connection.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> Planner:
        self._session = await Session.open(self._url, "warren topology", lambda reason: None)
        self._control = ControlChannel(self._session)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def plan(
        self,
        items: Iterable[Declarable],
        listing: Listing | None = None,
        messages: Iterable[type[Message]] = (),
    ) -> Plan:
        """Return the comparison of the items with the broker, without changing the broker.

        An existing item is compared by declaring it again; the broker then reports differences and changes nothing. The
        item is created only if someone else deletes it between the check for existence and this declaration. For a
        queue with `expires` the declaration counts as a use.

        :param items: declared exchanges, queues and bindings; the dead letter
            exchange and queues that they imply are added.
        :param listing: the listing of the broker; without it bindings and undeclared items are unknown.
        :param messages: message classes that are published, `app.messages`: those that must reach a queue are not dropped
            silently.
        """
        items = sorted(_with_implied(items), key=declaration_order)
        steps = [await self._step(item, listing) for item in items]
        product, version = self._session.server
        with_policies = items if listing is None else [apply_policy(item, listing.policies) for item in items]
        exchanges, queues = _referred(with_policies)
        own = _own(items, listing)
        return Plan(
            broker=f"{product} {version}",
            steps=tuple(steps),
            listed=listing is not None,
            own=own,
            undeclared=_undeclared(items, listing, own),
            risks=tuple(
                risks(
                    with_policies,
                    bindings=listing.bindings if listing else (),
                    missing=await self._missing(Exchange(name) for name in sorted(exchanges)),
                    missing_queues=await self._missing(Queue(name) for name in sorted(queues)),
                    rabbitmq=_version(version) if product == "RabbitMQ" else None,
                    messages=messages,
                )
            ),
        )

    async def apply(self, plan: Plan, *, mismatch: MismatchPolicy = "fail") -> list[str]:
        """Declare the missing exchanges, queues and bindings, and bindings
        that could not be listed; return their names.

        :param mismatch: `fail` declares nothing if an item differs; `adopt` leaves
            differing items unchanged and declares the rest.
        :raises TopologyMismatch: if something differs, or the broker refuses a declaration.
        """
        differing = plan.of(Status.DIFFERS)
        if differing and mismatch == "fail":
            first = differing[0]
            more = f", and {len(differing) - 1} more" if len(differing) > 1 else ""
            raise TopologyMismatch(
                f"nothing was declared: {first.name} differs{more}: {'; '.join(map(str, first.differences))}"
                " (`warren topology plan` says what to do; --mismatch adopt leaves it as it is)",
                reply_code=406,
                differences=first.differences,
            )
        declared = []
        for step in plan.steps:
            unlisted = step.status is Status.UNKNOWN and isinstance(step.item, Binding)
            if step.status is Status.MISSING or unlisted:
                await self._control.run(f"cannot declare {step.name}", declare_method(step.item))
                declared.append(step.name)
        return declared

    async def _step(self, item: Declarable, listing: Listing | None) -> Step:
        if isinstance(item, Binding):
            return _binding_step(item, listing)
        if isinstance(item, Queue) and item.exclusive:
            return Step(item, Status.UNKNOWN, advice="each connection declares its own exclusive queue")
        try:
            await self._control.run(f"cannot check {label(item)}", Declaration.of(item).check_exists)
            found = await differences(self._control, item)
        except TopologyMismatch as error:
            if error.reply_code == 404:
                return Step(item, Status.MISSING, advice="`warren topology apply` declares it")
            if error.reply_code == 406:
                return Step(item, Status.DIFFERS, advice=f"the broker says: {error}")
            return Step(item, Status.UNKNOWN, advice=f"it cannot be compared: {error}")
        if not found:
            return Step(item, Status.PRESENT)
        return Step(item, Status.DIFFERS, found, _advice(item, found))

    async def _missing(self, items: Iterable[Exchange | Queue]) -> set[str]:
        """Return the names of the items that do not exist; an item that the user has
        no permission to check counts as existing.
        """
        missing = set()
        for item in items:
            try:
                await self._control.run(f"cannot check {label(item)}", Declaration.of(item).check_exists)
            except TopologyMismatch as error:
                if error.reply_code == 404:
                    missing.add(item.name)
        return missing


def _with_implied(items: Iterable[Declarable]) -> list[Declarable]:
    items = list(items)
    return list({identity(item): item for item in (*with_implied_topology(items), *items)}.values())


def _binding_step(binding: Binding, listing: Listing | None) -> Step:
    if listing is None:
        return Step(
            binding,
            Status.UNKNOWN,
            advice="AMQP cannot show bindings; --management-url or --control-socket can",
        )
    if any(each == binding for each in listing.bindings) or binding.destination.startswith("amq."):
        return Step(binding, Status.PRESENT)
    return Step(binding, Status.MISSING, advice="`warren topology apply` declares it")


def _referred(items: Iterable[Declarable]) -> tuple[set[str], set[str]]:
    """Return two sets: the names of undeclared exchanges, and of undeclared queues, to which declared items refer.

    A declared exchange refers to its alternate exchange. A declared queue refers to its dead letter exchange, or to the
    queue that gets its dead letters through the default exchange.
    """
    items = list(items)
    exchanges = [item for item in items if isinstance(item, Exchange)]
    queues = [item for item in items if isinstance(item, Queue)]
    wanted = {each.alternate_exchange for each in exchanges} | {each.dead_letter_exchange for each in queues}
    targets = {each.dead_letter_key for each in queues if each.dead_letter_exchange == ""}
    return (
        {name for name in wanted if name and not predeclared(name)} - {each.name for each in exchanges},
        {name for name in targets if name and not name.startswith("amq.")} - {each.name for each in queues},
    )


def _own(items: Iterable[Declarable], listing: Listing | None) -> dict[str, QueueRole]:
    """Return the queues of Warren's own that exist and are not declared, with their roles."""
    if listing is None:
        return {}
    declared = {item.name for item in items if isinstance(item, Queue)}
    roles = {
        name: role_of(name, arguments, listing.exchanges)
        for name, arguments in sorted(listing.queues.items())
    }
    return {name: role for name, role in roles.items() if role is not None and name not in declared}


def _undeclared(
    items: Iterable[Declarable], listing: Listing | None, own: Collection[str]
) -> tuple[Declarable, ...]:
    if listing is None:
        return ()
    items = list(items)
    exchanges = {item.name for item in items if isinstance(item, Exchange)}
    queues = {item.name for item in items if isinstance(item, Queue)}
    bindings = [item for item in items if isinstance(item, Binding)]
    found: list[Declarable] = [Exchange(name) for name in sorted(listing.exchanges - exchanges)]
    found += [Queue(name) for name in sorted(listing.queues.keys() - queues) if name not in own]
    found += [
        each
        for each in listing.bindings
        if each not in bindings
        and each.source in exchanges
        and each.destination in (exchanges if each.to_exchange else queues)
    ]
    return tuple(found)


def _advice(item: Exchange | Queue, found: tuple[Difference, ...]) -> str:
    """Return text on how to resolve the differences between an existing exchange or queue and its declaration.

    :param found: the differences.
    """
    policy = {BY_POLICY[each.argument]: each.declared for each in found if each.argument in BY_POLICY}
    if len(policy) == len(found) and all(each.current is None for each in found):
        kind = "exchanges" if isinstance(item, Exchange) else "queues"
        return (
            f"no need to delete it: rabbitmqctl set_policy NAME '^{item.name}$' '{json.dumps(policy)}' --apply-to {kind},"
            " and --mismatch adopt (or leave these arguments out here)"
        )
    if isinstance(item, Exchange):
        return (
            f"declare what is there; or stop its publishers, delete {item.name!r}, apply, and start them:"
            " its bindings go with it, and apply makes the declared ones"
        )
    return (
        f"declare what is there; or give the new queue another name, bind it, let the consumers empty {item.name!r}, and"
        " delete that one; or, if its messages may go, delete it and apply"
    )


def _version(text: str) -> tuple[int, int]:
    numbers = text.split(".")
    try:
        return int(numbers[0]), int(numbers[1])
    except (IndexError, ValueError):
        return (99, 0)
