"""Everything that can be made over any surface can be exported, and everything that is exported can be imported."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from pamqp.commands import Exchange, Queue

from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.raw_client import made
from tests.support.surfaces import AMQP, CONTROL, HTTP, Asked, Surfaces
from warren.broker import BrokerConfig

pytestmark = pytest.mark.slow

NAMES = st.sampled_from(["a", "b", "a.b", "amq.topic", "amq.mine", "ö ü", "%2F", "x" * 255, "-", ""])
KEYS = st.sampled_from(["", "k", "#", "*.a", "ö", "k" * 255])
KINDS = st.sampled_from(
    ["direct", "fanout", "topic", "headers", "x-consistent-hash", "x-delayed-message", "strange"]
)
VALUES = st.one_of(
    st.integers(-1, 2**31),
    st.text("aä.", max_size=3),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.lists(st.integers(0, 9), max_size=2),
)
QUEUE_ARGUMENTS = st.dictionaries(
    st.sampled_from(
        [
            "x-message-ttl",
            "x-expires",
            "x-max-length",
            "x-max-priority",
            "x-overflow",
            "x-dead-letter-exchange",
            "x-dead-letter-routing-key",
            "x-single-active-consumer",
            "x-delivery-limit",
            "other",
        ]
    ),
    VALUES,
    max_size=2,
)
QUEUE_TYPES = st.sampled_from(["classic", "quorum", "stream", "strange", None])
EXCHANGE_ARGUMENTS = st.dictionaries(
    st.sampled_from(["alternate-exchange", "x-delayed-type", "hash-header", "other"]), VALUES, max_size=2
)
BINDING_ARGUMENTS = st.dictionaries(st.sampled_from(["x-match", "h", "other"]), VALUES, max_size=2)
PATTERNS = st.sampled_from(["", ".*", "^a", "(", "ö", "^(a|b)$"])
DEFINITIONS = st.dictionaries(
    st.sampled_from(["max-length", "message-ttl", "dead-letter-exchange", "expires", "queue-mode", "other"]),
    st.one_of(st.integers(-1, 100), st.just("a")),
    max_size=2,
)
OVER = st.sampled_from([AMQP, HTTP])


def path(*parts: str) -> str:
    """Return a path of the HTTP API; the empty name is that of the default exchange."""
    return "/".join(quote(part or "amq.default", safe="") for part in parts)


class AnyDefinitions(RuleBasedStateMachine):
    """A broker whose definitions are changed at random; what it refuses changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="warren-definitions-"))
        self.open = ExitStack()
        self.open.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.surfaces = Surfaces(
            self.open.enter_context(InProcessBroker(self.folder / "first", config=CONFIG))
        )

    def put(self, *parts: str, body: Any) -> None:
        self.surfaces.api.ask("PUT", path(*parts), body)

    @rule(over=OVER, name=NAMES, kind=KINDS, arguments=EXCHANGE_ARGUMENTS, auto_delete=st.booleans())
    def declare_exchange(
        self, over: str, name: str, kind: str, arguments: dict[str, Any], auto_delete: bool
    ) -> None:
        declare = made(
            Exchange.Declare,
            exchange=name,
            exchange_type=kind,
            durable=True,
            auto_delete=auto_delete,
            arguments=arguments,
        )
        body = {"type": kind, "durable": True, "auto_delete": auto_delete, "arguments": arguments}
        self.surfaces.ask(over, Asked((declare,), ("PUT", path("exchanges", "/", name), body)), "guest")

    @rule(over=OVER, name=NAMES, kind=QUEUE_TYPES, arguments=QUEUE_ARGUMENTS, auto_delete=st.booleans())
    def declare_queue(
        self, over: str, name: str, kind: str | None, arguments: dict[str, Any], auto_delete: bool
    ) -> None:
        if kind is not None:
            arguments = arguments | {"x-queue-type": kind}
        declare = made(Queue.Declare, queue=name, durable=True, auto_delete=auto_delete, arguments=arguments)
        body = {"durable": True, "auto_delete": auto_delete, "arguments": arguments}
        self.surfaces.ask(over, Asked((declare,), ("PUT", path("queues", "/", name), body)), "guest")

    @rule(over=OVER, source=NAMES, queue=NAMES, key=KEYS, arguments=BINDING_ARGUMENTS)
    def bind_queue(self, over: str, source: str, queue: str, key: str, arguments: dict[str, Any]) -> None:
        bind = made(Queue.Bind, queue=queue, exchange=source, routing_key=key, arguments=arguments)
        where = path("bindings", "/", "e", source, "q", queue)
        body = {"routing_key": key, "arguments": arguments}
        self.surfaces.ask(over, Asked((bind,), ("POST", where, body)), "guest")

    @rule(over=OVER, source=NAMES, destination=NAMES, key=KEYS, arguments=BINDING_ARGUMENTS)
    def bind_exchange(
        self, over: str, source: str, destination: str, key: str, arguments: dict[str, Any]
    ) -> None:
        bind = made(
            Exchange.Bind, destination=destination, source=source, routing_key=key, arguments=arguments
        )
        where = path("bindings", "/", "e", source, "e", destination)
        body = {"routing_key": key, "arguments": arguments}
        self.surfaces.ask(over, Asked((bind,), ("POST", where, body)), "guest")

    @rule(over=OVER, name=NAMES)
    def delete_exchange(self, over: str, name: str) -> None:
        asked = Asked((made(Exchange.Delete, exchange=name),), ("DELETE", path("exchanges", "/", name), None))
        self.surfaces.ask(over, asked, "guest")

    @rule(over=st.sampled_from([AMQP, HTTP, CONTROL]), name=NAMES)
    def delete_queue(self, over: str, name: str) -> None:
        asked = Asked(
            (made(Queue.Delete, queue=name),),
            ("DELETE", path("queues", "/", name), None),
            ("delete_queue", {"queue": name}),
        )
        self.surfaces.ask(over, asked, "guest")

    @rule(
        kind=st.sampled_from(["policies", "operator-policies"]),
        name=NAMES,
        pattern=PATTERNS,
        definition=DEFINITIONS,
        apply_to=st.sampled_from(["all", "queues", "exchanges", "streams", "strange"]),
        priority=st.integers(-1, 3),
    )
    def set_policy(
        self, kind: str, name: str, pattern: str, definition: dict[str, Any], apply_to: str, priority: int
    ) -> None:
        body = {"pattern": pattern, "definition": definition, "apply-to": apply_to, "priority": priority}
        self.put(kind, "/", name, body=body)

    @rule(name=NAMES, tags=st.sampled_from(["", "management", "administrator,other", ","]))
    def put_user(self, name: str, tags: str) -> None:
        if name != "guest":
            self.put("users", name, body={"password": "p", "tags": tags})

    @rule(name=NAMES, configure=PATTERNS, write=PATTERNS, read=PATTERNS)
    def set_permissions(self, name: str, configure: str, write: str, read: str) -> None:
        self.put("permissions", "/", name, body={"configure": configure, "write": write, "read": read})

    @rule(name=NAMES, exchange=NAMES, write=PATTERNS, read=PATTERNS)
    def set_topic_permissions(self, name: str, exchange: str, write: str, read: str) -> None:
        self.put("topic-permissions", "/", name, body={"exchange": exchange, "write": write, "read": read})

    @rule(name=NAMES, description=st.text("aö", max_size=2), kind=QUEUE_TYPES)
    def put_vhost(self, name: str, description: str, kind: str | None) -> None:
        body = {"description": description, "tags": "one,two"}
        self.put("vhosts", name, body=body if kind is None else body | {"default_queue_type": kind})

    @rule(
        vhost=NAMES,
        limit=st.sampled_from(["max-queues", "max-connections", "other"]),
        value=st.integers(-2, 5),
    )
    def set_limit(self, vhost: str, limit: str, value: int) -> None:
        self.put("vhost-limits", vhost, limit, body={"value": value})

    @rule(name=NAMES, value=VALUES)
    def set_global_parameter(self, name: str, value: Any) -> None:
        self.put("global-parameters", name, body={"value": value})

    def teardown(self) -> None:
        with self.open:
            second = Surfaces(self.open.enter_context(InProcessBroker(self.folder / "second", config=CONFIG)))
            exported = self.surfaces.api.get("definitions")
            answer = second.api.ask("POST", "definitions", exported)
            assert answer.status == 204, answer.body
            assert without_order(second.api.get("definitions")) == without_order(exported)


CONFIG = BrokerConfig(management_port=0, handshake_timeout=PATIENCE, login_failure_delay=0)


def without_order(definitions: dict[str, Any]) -> dict[str, Any]:
    """Return definitions with sorted lists; hashes of passwords are imported as they are."""
    return {
        name: sorted(value, key=repr) if isinstance(value, list) else value
        for name, value in definitions.items()
    }


AnyDefinitions.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
test_what_is_exported_can_be_imported = AnyDefinitions.TestCase
