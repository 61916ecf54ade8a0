"""One request to the HTTP API: its path, query and body, its caller, and the broker that it is for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from warren.broker.http_api.api_error import (
    ApiError,
    bad_request,
    from_refusal,
    not_found,
    object_not_found,
)
from warren.broker.http_api.caller import Authenticator, Caller
from warren.broker.http_api.json_body import BodyLimits, NotJson, TooManyValues, parse_in_steps
from warren.broker.http_api.listing_query import ListingQuery
from warren.broker.http_api.statistics_json import Statistics
from warren.broker.management.control_verbs import Action, perform
from warren.broker.management.management import Management
from warren.broker.management.request import Json, Request
from warren.broker.management.time_slices import run_in_slices
from warren.broker.model.broker_events import acting_as
from warren.broker.model.operator_errors import OperationRefused
from warren.broker.model.vhost.declarations import Declarations
from warren.broker.operations.principal import Principal
from warren.broker.operations.waiting import Operation, changes_stored, result_of, until_synced

T = TypeVar("T")


@dataclass
class Response:
    """Response to a request.

    :param body: JSON value; None for no body. `encoded` replaces it if it is not None.
    :param encoded: body as parts of JSON text that are sent one after the other.
    """

    status: int = 200
    body: Json = None
    encoded: list[bytes] | None = None
    headers: dict[str, str] = field(default_factory=dict)


CREATED: Final = 201
NO_CONTENT: Final = 204


class Call:
    """One request.

    :param address: IP address of the client.
    :param method: method, such as `GET`.
    :param names: parts of the path by name, decoded.
    :param query: parameters of the query.
    :param body: body of the request.
    :param limits: what it may have at most.
    """

    def __init__(
        self,
        management: Management,
        statistics: Statistics,
        authenticator: Authenticator,
        address: str,
        caller: Caller,
        method: str,
        names: Mapping[str, str],
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes,
        limits: BodyLimits,
    ) -> None:
        self.management = management
        self.statistics = statistics
        self.node = management.node
        self.authenticator = authenticator
        self.address = address
        self.caller = caller
        self.method = method
        self.names = names
        self.query = query
        self.headers = headers
        self._body = body
        self._limits = limits
        self._parsed: Json | NotJson | TooManyValues = None

    # -- path

    def name(self, part: str) -> str:
        """Return a part of the path."""
        return self.names[part]

    def data(self, part: str) -> bytes:
        """Return a part of the path as bytes, as AMQP names are."""
        return self.names[part].encode("utf-8", "surrogateescape")

    def flag(self, name: str) -> bool:
        """Return whether a parameter of the query is `true`."""
        return self.query.get(name) == "true"

    def declarations(self) -> Declarations:
        """Return the virtual host of the path, which the caller may open.

        :raises ApiError: 404 if there is none, 401 or 404 if the caller may not open it.
        """
        return self._vhost(self.caller.require_open)

    def visible(self) -> Declarations:
        """Return the virtual host of the path, whose objects the caller may see.

        :raises ApiError: 404 if there is none, or the caller may not see them.
        """
        return self._vhost(self.caller.require_see)

    def monitored(self) -> Declarations:
        """Return the virtual host of the path, whose limits, connections and consumers the caller may see.

        :raises ApiError: 404 if there is none, or the caller may not see them.
        """
        return self._vhost(self.caller.require_monitor)

    def _vhost(self, check: Callable[[str], None]) -> Declarations:
        name = self.name("vhost")
        if name not in self.node.virtual_hosts:
            raise not_found("vhost_not_found") if self.method in ("PUT", "POST") else object_not_found()
        check(name)
        return self.node.virtual_hosts.declarations_of(name)

    def all_visible(self) -> list[Declarations]:
        """Return the virtual hosts whose objects the caller may see, by name."""
        hosts = self.node.virtual_hosts
        return [hosts.declarations_of(each.name) for each in hosts.all() if self.caller.may_see(each.name)]

    def all_monitored(self) -> list[Declarations]:
        """Return the virtual hosts whose connections and consumers the caller may see, by name."""
        hosts = self.node.virtual_hosts
        return [
            hosts.declarations_of(each.name) for each in hosts.all() if self.caller.may_monitor(each.name)
        ]

    # -- body

    @property
    def raw_body(self) -> bytes:
        """Body as it was received."""
        return self._body

    @property
    def _is_empty(self) -> bool:
        """True if the body has no text. It is not copied, as it may have 10 MB."""
        return not self._body or self._body.isspace()

    async def parse_body(self) -> None:
        """Parse the body in slices. Whether it is JSON matters only to what asks for it, such as `body`."""
        if not self._is_empty:
            self._parsed = await self._parse(self._body)

    async def parse_form_file(self, text: bytes) -> None:
        """Parse the file that a form uploads, in place of the form.

        :param text: content of the file.
        """
        self._parsed = await self._parse(text)

    async def _parse(self, text: bytes) -> Json | NotJson | TooManyValues:
        try:
            return await run_in_slices(parse_in_steps(text, self._limits.values))
        except (NotJson, TooManyValues) as error:
            return error

    def json_body(self, reason: str) -> dict[str, Json]:
        """Return the body, which must be a JSON object.

        :param reason: RabbitMQ's reason for another body.
        :raises ApiError: 400 if it is none; 413 if it has more values than a request to this path may have.
        """
        if isinstance(self._parsed, TooManyValues):
            raise ApiError(413, "payload_too_large", f"the body is too large: {self._parsed}")
        if not isinstance(self._parsed, dict):
            raise bad_request(reason)
        return self._parsed

    def body(self, *required: str) -> dict[str, Json]:
        """Return the body, a JSON object; an empty body is an empty object.

        :param required: names that the object must have.
        :raises ApiError: 400 if the body is no JSON object, or lacks a name; 413 if it has too many values.
        """
        found = {} if self._is_empty else self.json_body("not_json")
        missing = [name for name in required if name not in found]
        if missing:
            raise bad_request("[" + ",".join(f"{{key_missing,{_atom(name)}}}" for name in missing) + "]")
        return found

    def refuse_alarm(self) -> None:
        """Refuse to publish during a resource alarm, as AMQP does. RabbitMQ takes messages over HTTP even so.

        :raises ApiError: 400 if there is an alarm.
        """
        alarm = self.node.flow.alarm
        if alarm:
            raise bad_request(f"publishers are blocked: {alarm.decode(errors='replace')}")

    # -- operations

    async def perform(self, action: Action, **arguments: Json) -> Json:
        """Perform the action of a control verb; return its result after its changes are on disk.

        :raises ApiError: 400 or 404 if it is refused.
        """
        try:
            with acting_as(self.caller.user.name):
                return await perform(self.management, action, Request(arguments))
        except OperationRefused as refused:
            raise from_refusal(refused) from None

    def principal(self) -> Principal:
        """Return the caller as the principal of operations in the virtual host of the path.

        :raises ApiError: 404 if there is none, 401 or 404 if the caller may not open it.
        """
        declarations, user = self.declarations(), self.caller.user.name
        return Principal(
            declarations,
            user.encode("utf-8", "surrogateescape"),
            self.caller.authorization(self.name("vhost")),
            origin=f"{self.address} (HTTP API)",
        )

    async def change(self, operation: Callable[[], T]) -> T:
        """Perform an operation that waits for nothing; return its result after its changes are on disk.

        :raises AmqpError: if it is refused; the response is that of `from_amqp`.
        """
        async with changes_stored(self.node):
            with acting_as(self.caller.user.name):
                return operation()

    async def run(self, operation: Operation[T]) -> T:
        """Perform an operation; return its result after its changes are on disk.

        :raises AmqpError: if it is refused; the response is that of `from_amqp`.
        """
        async with changes_stored(self.node):
            with acting_as(self.caller.user.name):
                return await result_of(operation)

    async def synced(self) -> None:
        """Return when all that was published and settled so far is on disk.

        :raises AmqpError: 541 if the disk has failed.
        """
        await result_of(until_synced(self.node))

    # -- values

    def select(self, row: Json) -> Json:
        """Return an object with the columns that the query asks for."""
        return ListingQuery.parse(self.query).select(row)

    def boolean(self, body: dict[str, Json], name: str) -> bool:
        """Return a flag of the body; False if it has none.

        :raises ApiError: 400 if it is neither true nor false.
        """
        value = body.get(name, False)
        if value in ("true", "false"):
            return bool(value == "true")
        if not isinstance(value, bool):
            raise bad_request(["not_boolean", value])
        return value


Handler: TypeAlias = Callable[[Call], Awaitable[Response]]
"""Function that answers the requests to one path with one method."""


def _atom(name: str) -> str:
    """Return a name as Erlang prints an atom: quoted unless it is made of letters, digits and underscores."""
    return name if name.replace("_", "").isalnum() and name[:1].islower() else f"'{name}'"
