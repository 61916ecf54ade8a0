"""Implementation of the `warren ctl` commands that rabbitmq-diagnostics has: reports, features and single checks."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Final

from warren.broker.access import passwords
from warren.broker.management import rabbitmq_features
from warren.broker.management.items.queue_items import NODE
from warren.broker.management.request import Json, Request, RequestRefused
from warren.broker.management.verbs import health, listing, permissions, policies, virtual_hosts
from warren.broker.management.verbs.health import require_started
from warren.broker.management.verbs.listing import table
from warren.core.errors import ExitStatus

if TYPE_CHECKING:
    from warren.broker.management.management import Management

PROTOCOL_ALIASES: Final = {
    "amqp091": "amqp",
    "amqp/ssl": "amqps",
    "http/prometheus": "http/prometheus",
}
"""Names of protocols that RabbitMQ's checks take, with the scheme of this broker's listeners."""


def version(management: Management, _: Request) -> Json:
    """Return Warren's version, and the version of RabbitMQ whose behaviour it follows."""
    behaviour = management.node.virtual_hosts.compat.version
    return f"{health.own_version()} (RabbitMQ {behaviour})"


async def report(management: Management, _: Request) -> Json:
    """Return what describes the whole broker, section by section, for a support request: no password, no message."""
    nothing = Request({})
    found: dict[str, Json] = {
        "Runtime versions": {"Warren": version(management, nothing), "Python": sys.version.split()[0]},
    }
    for title, content in (await health.status(management, nothing)).items():
        found[f"Status: {title}"] = content
    found.update(health.environment(management, nothing))
    sections: dict[str, Json] = {
        "Connections": await listing.list_connections(management, nothing),
        "Channels": await listing.list_channels(management, nothing),
        "Virtual hosts": virtual_hosts.list_vhosts(management, nothing),
    }
    for settings in management.node.virtual_hosts.all():
        named = Request({"vhost": settings.name})
        sections[f"Queues in vhost {settings.name}"] = await listing.list_queues(management, named)
        sections[f"Exchanges in vhost {settings.name}"] = await listing.list_exchanges(management, named)
        sections[f"Bindings in vhost {settings.name}"] = await listing.list_bindings(management, named)
        sections[f"Consumers in vhost {settings.name}"] = await listing.list_consumers(management, named)
        sections[f"Permissions in vhost {settings.name}"] = permissions.list_permissions(management, named)
        sections[f"Policies in vhost {settings.name}"] = policies.list_policies(management, named)
    for title, rows in sections.items():
        found[title] = {
            str(index): dict(zip(rows["columns"], row, strict=True))
            for index, row in enumerate(rows["rows"], 1)
        }
    return found


def list_feature_flags(_: Management, __: Request) -> Json:
    flags = rabbitmq_features.feature_flags()
    return table(["name", "state"], [[each["name"], each["state"]] for each in flags])


def enable_feature_flag(_: Management, request: Request) -> None:
    """Accept a feature flag that this broker has, or `all`: they are on.

    :raises RequestRefused: for any other flag
    """
    name = request.text("feature_flag")
    if name != "all" and name not in rabbitmq_features.FEATURE_FLAGS:
        raise RequestRefused(f"there is no feature flag {name!r}; `list_feature_flags` shows which there are")


def list_deprecated_features(management: Management, request: Request) -> Json:
    """List RabbitMQ's deprecated features; with the flag `used`, those that clients have used."""
    portability = management.node.virtual_hosts.portability
    used = {each["name"] for each in rabbitmq_features.used_deprecated_features(portability)}
    columns = ["name", "deprecation_phase", "state"]
    return table(
        columns,
        [
            [each[column] for column in columns]
            for each in rabbitmq_features.deprecated_features(portability)
            if each["name"] in used or not request.flag("used")
        ],
    )


def check_if_any_deprecated_features_are_used(management: Management, _: Request) -> Json:
    used = rabbitmq_features.used_deprecated_features(management.node.virtual_hosts.portability)
    if used:
        names = ", ".join(str(each["name"]) for each in used)
        raise RequestRefused(f"deprecated features are in use: {names}", ExitStatus.FAILED)
    return "No deprecated features in use"


def list_node_auth_attempt_stats(management: Management, _: Request) -> Json:
    """List how many logins succeeded and were refused, by protocol."""
    churn = management.node.churn
    return table(
        ["protocol", "auth_attempts", "auth_attempts_failed", "auth_attempts_succeeded"],
        [
            [protocol, succeeded + churn.logins_refused[protocol], churn.logins_refused[protocol], succeeded]
            for protocol, succeeded in churn.logins.items()
        ],
    )


def check_alarms(management: Management, request: Request) -> Json:
    health.check_local_alarms(management, request)
    return f"{NODE} reported no alarms"


def check_virtual_hosts(_: Management, __: Request) -> Json:
    """Return that all virtual hosts run; in a broker that replies they do."""
    return f"{NODE} reported that all its virtual hosts are running"


def check_if_node_is_quorum_critical(_: Management, __: Request) -> Json:
    """Return that the node is not critical for a quorum, as RabbitMQ does for a single node."""
    return f"{NODE} is a single node: no queue depends on the quorum of others"


def check_port_listener(management: Management, request: Request) -> Json:
    """Check that a listener has a port.

    :raises RequestRefused: if none has
    """
    text = request.text("port")
    if not text.isascii() or not text.isdigit():
        raise RequestRefused(f"{text!r} is no port; write a number")
    found = [where for where in management.listeners() if where.rpartition(":")[2] == str(int(text))]
    if not found:
        raise RequestRefused(
            f"no listener has the port {text}; there are: {', '.join(management.listeners())}",
            ExitStatus.FAILED,
        )
    return f"A listener for port {text} is running on {NODE}"


def check_protocol_listener(management: Management, request: Request) -> Json:
    """Check that a protocol, such as `amqp` or `http`, has a listener.

    :raises RequestRefused: if it has none
    """
    asked = request.text("protocol")
    name = PROTOCOL_ALIASES.get(asked.lower(), asked.lower())
    active = [where.partition(" at ")[0] for where in management.listeners()]
    if name not in active:
        raise RequestRefused(
            f"no listener serves the protocol {asked}; there are: {', '.join(active)}", ExitStatus.FAILED
        )
    return f"A listener for protocol {asked} is running on {NODE}"


def is_running(management: Management, _: Request) -> Json:
    require_started(management)
    return f"{NODE} is fully booted and running"


def is_booting(_: Management, __: Request) -> Json:
    """Refuse with exit status 1: the control socket opens when the broker has started.

    :raises RequestRefused: always
    """
    raise RequestRefused(f"{NODE} is fully booted and running", ExitStatus.FAILED)


def node_health_check(_: Management, __: Request) -> Json:
    """Return the text with which RabbitMQ 4.3 answers this verb, which checks nothing any more."""
    return "This command is DEPRECATED and is a no-op; use check_running, check_alarms and check_port_connectivity"


def hash_password(_: Management, request: Request) -> Json:
    """Return a hash of a password, as `password_hash` of a user in definitions has it."""
    password = request.text("password")
    if not password:
        raise RequestRefused("the password must not be empty")
    return passwords.to_definitions(passwords.hash_password(password))


def force_gc(_: Management, __: Request) -> None:
    """Run a full garbage collection of the broker's process, which takes a moment for each million of objects."""
    gc.collect()


def set_permissions_globally(management: Management, request: Request) -> None:
    """Set a user's permissions in all virtual hosts."""
    for settings in management.node.virtual_hosts.all():
        management.node.access.permissions.set(
            request.text("username"),
            settings.name,
            request.text("configure"),
            request.text("write"),
            request.text("read"),
        )
