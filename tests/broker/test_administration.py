"""Administration over HTTP and by `warren ctl`: the same state, log and refusals, and one record in the audit log.

Each case is run over both surfaces, on a broker of its own, and the outcomes are compared.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.surfaces import CONTROL, HTTP, Asked, Refusal, Surfaces
from warren.broker import BrokerConfig

UNPRIVILEGED: Final = "unprivileged"
"""User who may use the HTTP API, and is no administrator."""
RECORDED: Final = "audit.change_recorded"
HEADINGS: Final = ("Validation failed\n\n", "Validation failed: ")
"""Headings of the texts of refusals over HTTP and by `warren ctl`."""
SOURCES: Final = {HTTP: "source='127.0.0.1' surface='HTTP'", CONTROL: "surface='control socket'"}
CONFIG: Final = BrokerConfig(management_port=0, handshake_timeout=PATIENCE, login_failure_delay=0)
PATTERNS: Final = {"configure": "^a", "write": "^b", "read": ".*"}


def change(method: str, path: str, body: Any, verb: str, **arguments: Any) -> Asked:
    return Asked((), (method, path, body), (verb, arguments))


def policy(definition: dict[str, Any], *, operator: bool = False) -> Asked:
    kind = "operator-policies" if operator else "policies"
    return change(
        "PUT",
        f"{kind}/shop/p",
        {"pattern": "^q", "definition": definition, "priority": 3, "apply-to": "queues"},
        "set_operator_policy" if operator else "set_policy",
        vhost="shop",
        name="p",
        pattern="^q",
        definition=definition,
        priority=3,
        apply_to="queues",
    )


def permissions(user: str, vhost: str, patterns: dict[str, str]) -> Asked:
    return change(
        "PUT",
        f"permissions/{vhost}/{user}",
        patterns,
        "set_permissions",
        username=user,
        vhost=vhost,
        **patterns,
    )


def vhost_limit(name: str, value: Any) -> Asked:
    definition = {name: value}
    return change(
        "PUT",
        f"vhost-limits/shop/{name}",
        {"value": value},
        "set_vhost_limits",
        vhost="shop",
        definition=definition,
    )


def user_limit(name: str, value: Any) -> Asked:
    return change(
        "PUT",
        f"user-limits/ann/{name}",
        {"value": value},
        "set_user_limits",
        username="ann",
        definition={name: value},
    )


DEFINITIONS: Final = {
    "queues": [{"name": "q", "vhost": "shop", "durable": True, "auto_delete": False, "arguments": {}}]
}

DONE: Final = {
    "add a virtual host": change(
        "PUT",
        "vhosts/new",
        {"description": "for tests", "tags": "a,b", "default_queue_type": "quorum"},
        "add_vhost",
        name="new",
        description="for tests",
        tags="a,b",
        default_queue_type="quorum",
    ),
    "change a virtual host": change(
        "PUT",
        "vhosts/shop",
        {"description": "other"},
        "update_vhost_metadata",
        name="shop",
        description="other",
    ),
    "protect a virtual host": change(
        "POST", "vhosts/shop/deletion/protection", None, "enable_vhost_protection_from_deletion", name="shop"
    ),
    "end the protection of a virtual host": change(
        "DELETE",
        "vhosts/kept/deletion/protection",
        None,
        "disable_vhost_protection_from_deletion",
        name="kept",
    ),
    "delete a virtual host": change("DELETE", "vhosts/shop", None, "delete_vhost", name="shop"),
    "trace a virtual host": change("PUT", "vhosts/shop", {"tracing": True}, "trace_on", vhost="shop"),
    "limit a virtual host": vhost_limit("max-queues", 5),
    "set permissions": permissions("ann", "shop", PATTERNS),
    "clear permissions": change(
        "DELETE", "permissions/%2F/ann", None, "clear_permissions", username="ann", vhost="/"
    ),
    "set topic permissions": change(
        "PUT",
        "topic-permissions/shop/ann",
        {"exchange": "amq.topic", "write": "^a", "read": ".*"},
        "set_topic_permissions",
        username="ann",
        vhost="shop",
        exchange="amq.topic",
        write="^a",
        read=".*",
    ),
    "delete a user": change("DELETE", "users/ann", None, "delete_user", username="ann"),
    "limit a user": user_limit("max-channels", 7),
    "set a policy": policy({"max-length": 10}),
    "set an operator policy": policy({"max-length": 10}, operator=True),
    "clear a policy": change("DELETE", "policies/%2F/all", None, "clear_policy", vhost="/", name="all"),
    "set a global parameter": change(
        "PUT",
        "global-parameters/g",
        {"value": {"a": [1]}},
        "set_global_parameter",
        name="g",
        value='{"a": [1]}',
    ),
    "clear a global parameter": change(
        "DELETE", "global-parameters/known", None, "clear_global_parameter", name="known"
    ),
    "import definitions": change(
        "POST", "definitions", DEFINITIONS, "import_definitions", definitions=DEFINITIONS
    ),
}
REFUSED: Final = {
    "delete a protected virtual host": change("DELETE", "vhosts/kept", None, "delete_vhost", name="kept"),
    "delete a missing virtual host": change("DELETE", "vhosts/none", None, "delete_vhost", name="none"),
    "protect a missing virtual host": change(
        "POST", "vhosts/none/deletion/protection", None, "enable_vhost_protection_from_deletion", name="none"
    ),
    "set an unknown limit of a virtual host": vhost_limit("max-cats", 5),
    "set an invalid limit of a virtual host": vhost_limit("max-queues", "five"),
    "set permissions of a missing user": permissions("none", "shop", PATTERNS),
    "set permissions in a missing virtual host": permissions("ann", "none", PATTERNS),
    "set permissions with an invalid pattern": permissions("ann", "shop", {**PATTERNS, "read": "("}),
    "delete a missing user": change("DELETE", "users/none", None, "delete_user", username="none"),
    "set an unknown limit of a user": user_limit("max-cats", 5),
    "set an invalid limit of a user": user_limit("max-channels", "five"),
    "set a policy with an unknown key": policy({"max-cats": 1}),
    "set a policy with an invalid value": policy({"max-length": -1}),
    "set an operator policy with a key of others": policy({"alternate-exchange": "x"}, operator=True),
    "set a parameter of an unknown component": change(
        "PUT",
        "parameters/cats/shop/tom",
        {"value": 1},
        "set_parameter",
        component="cats",
        vhost="shop",
        name="tom",
        value="1",
    ),
}


def params(cases: dict[str, Asked]) -> list[Any]:
    return [pytest.param(asked, id=name.replace(" ", "-")) for name, asked in cases.items()]


class Trial:
    """A broker with users, virtual hosts and policies, and two surfaces to ask for changes."""

    def __init__(self, broker: InProcessBroker, caplog: pytest.LogCaptureFixture) -> None:
        self.surfaces = Surfaces(broker)
        self.caplog = caplog
        self.log: list[str] = []
        api = self.surfaces.api
        api.put("vhosts/shop")
        api.put("vhosts/kept", {"protected_from_deletion": True})
        api.put("users/ann", {"password": "ann", "tags": "management"})
        api.put(f"users/{UNPRIVILEGED}", {"password": UNPRIVILEGED, "tags": "management"})
        for user in ("ann", UNPRIVILEGED):
            api.put(f"permissions/%2F/{user}", PATTERNS)
        api.put("policies/%2F/all", {"pattern": ".*", "definition": {"max-length": 5}})
        api.put("global-parameters/known", {"value": 1})
        api.put("queues/shop/waiting", {"durable": True})
        caplog.clear()

    def ask(self, surface: str, asked: Asked, user: str = "guest") -> tuple[Refusal | None, str]:
        """Ask for a change; return its refusal, and its record in the audit log, which is the only one."""
        refusal = self.surfaces.ask(surface, asked, user)
        events = [
            record.getMessage()
            for record in self.caplog.records
            if record.name.startswith("warren.broker") and record.levelno >= logging.INFO
        ]
        self.caplog.clear()
        (line,) = [event for event in events if RECORDED in event]
        self.log = [event.split()[0] for event in events if RECORDED not in event]
        return refusal, line

    def state(self) -> dict[str, Any]:
        """Return the definitions and what they do not contain, and what the last change has logged."""
        api = self.surfaces.api
        state: dict[str, Any] = api.get("definitions")
        for each in state["users"]:
            # It is salted.
            del each["password_hash"]
        # As in RabbitMQ, who adds a virtual host over HTTP gets the permissions for it.
        state["permissions"] = [each for each in state["permissions"] if each["vhost"] != "new"]
        return state | {"tracing": [each["tracing"] for each in api.get("vhosts")], "log": self.log}


@pytest.fixture
def trial(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], Trial]]:
    """Return a function that starts a broker of its own."""
    caplog.set_level(logging.INFO, "warren.broker")
    with ExitStack() as brokers:

        def start() -> Trial:
            folder = tmp_path / f"data-{next(numbers)}"
            return Trial(brokers.enter_context(InProcessBroker(folder, config=CONFIG)), caplog)

        numbers = itertools.count()
        yield start


def text_of(refusal: Refusal | None) -> str | None:
    text = refusal and refusal.text
    for heading in HEADINGS:
        text = text and text.removeprefix(heading).rstrip("\n")
    return text


@pytest.mark.parametrize("asked", params(DONE))
def test_a_change_has_one_outcome_over_both_surfaces(trial: Callable[[], Trial], asked: Asked) -> None:
    states = []
    for surface in (HTTP, CONTROL):
        place = trial()
        refusal, record = place.ask(surface, asked)
        assert refusal is None
        assert SOURCES[surface] in record
        assert record.endswith("outcome=done")
        states.append(place.state())
    assert states[0] == states[1]


def test_a_change_is_refused_alike_over_both_surfaces(trial: Callable[[], Trial]) -> None:
    place = trial()
    before = place.state()
    for name, asked in REFUSED.items():
        texts = []
        for surface in (HTTP, CONTROL):
            refusal, record = place.ask(surface, asked)
            assert refusal is not None, name
            assert record.endswith("outcome=refused"), name
            texts.append(text_of(refusal))
        if texts[0] not in (None, "vhost_or_user_not_found"):
            assert texts[0] == texts[1], name
        assert place.state() == before, name


def test_a_change_over_http_needs_an_administrator(trial: Callable[[], Trial]) -> None:
    place = trial()
    before = place.state()
    for name, asked in DONE.items():
        refusal, record = place.ask(HTTP, asked, UNPRIVILEGED)
        assert refusal == Refusal(401, None), name
        assert f"user='{UNPRIVILEGED}'" in record
        assert record.endswith("outcome=refused"), name
        assert place.state() == before, name
