"""Health checks: 200 with `status: ok`, or 503 with a reason (https://www.rabbitmq.com/docs/monitoring#health-checks)."""

from __future__ import annotations

import ssl
import time
from typing import Final

from warren.broker.http_api.api_error import bad_request
from warren.broker.http_api.call import Call, Response
from warren.broker.http_api.resources.cluster import listeners, require_node
from warren.broker.management.items.queue_items import NODE
from warren.broker.management.request import Json

UNITS: Final = {"days": 86400, "weeks": 7 * 86400, "months": 30 * 86400, "years": 365 * 86400}
MOST_WITHIN: Final = 100 * UNITS["years"]


def _ok(**facts: Json) -> Response:
    return Response(body={"status": "ok", **facts})


def _failed(reason: str, **facts: Json) -> Response:
    return Response(503, body={"status": "failed", "reason": reason, **facts})


async def ok(_: Call) -> Response:
    """Answer that the check passes: a broker that answers always passes it."""
    return _ok()


async def ok_of_node(call: Call) -> Response:
    """Answer that the check passes, if the path names this node."""
    require_node(call)
    return _ok()


async def ok_in_monitored_vhost(call: Call) -> Response:
    """Answer that the check passes, if the caller may see the virtual host in lists."""
    if call.name("vhost") in call.node.virtual_hosts:
        call.monitored()
    return _ok()


async def ok_in_vhost(call: Call) -> Response:
    """Answer that a virtual host is alive, if the caller may open it."""
    call.declarations()
    return _ok()


async def quorum_critical(_: Call) -> Response:
    return _ok(reason="single node cluster")


async def alarms(call: Call) -> Response:
    """Check that no resource alarm is in effect, and that the disk answers."""
    found = [{"node": NODE, "resource": resource} for resource in sorted(set(call.node.flow.alarms.values()))]
    delays = call.management.disk_delays
    if delays is not None and delays.delayed:
        found.append({"node": NODE, "resource": "disk does not answer"})
    if found:
        return _failed("There are alarms in effect in the cluster", alarms=found)
    return _ok()


async def port_listener(call: Call) -> Response:
    text = call.name("port")
    if not text.isascii() or not text.isdigit():
        raise bad_request("Invalid port")
    port, ports = int(text), [each["port"] for each in listeners(call)]
    if port in ports:
        return _ok(port=port)
    return _failed("No active listener", missing=port, ports=ports)


async def protocol_listener(call: Call) -> Response:
    """Check that each of some protocols, with commas between, has a listener."""
    active = sorted({each["protocol"] for each in listeners(call)})
    names = {"amqp091": "amqp", "amqps": "amqp/ssl"}
    missing = [
        name
        for name in call.name("protocols").split(",")
        if names.get(name.strip().lower(), name.strip().lower()) not in active
    ]
    if missing:
        return _failed("No active listener", missing=missing, protocols=active)
    return _ok(protocols=active)


async def in_service(call: Call) -> Response:
    """Check that the broker accepts connections."""
    if call.management.listener.suspended:
        return _failed("the broker accepts no connections: its listeners are suspended")
    if call.management.admission.accepting:
        return _ok()
    return _failed("the broker accepts no connections at the moment: all its sockets are in use")


async def below_connection_limit(call: Call) -> Response:
    limit = call.management.config.max_connections
    if limit is None or len(call.node.connections) < limit:
        return _ok()
    return _failed("the broker has as many connections as it may have", limit=limit)


async def ready_to_serve(call: Call) -> Response:
    for check in (in_service, below_connection_limit):
        found = await check(call)
        if found.status != 200:
            return found
    return _ok()


async def certificates(call: Call) -> Response:
    """Check that the broker's certificate does not expire within some time."""
    unit, text = call.name("unit"), call.name("within")
    if unit not in UNITS:
        raise bad_request("Time unit not recognised. Supported units: days, weeks, months, years.")
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise bad_request(f"Invalid expiration period: {text}")
    within = min(int(text) * UNITS[unit], MOST_WITHIN)
    tls = call.management.config.tls
    if not tls.listeners or tls.certificate is None:
        return _ok()
    loop = call.node.loop
    expires = await loop.run_in_executor(None, _expiry, str(tls.certificate))
    if expires > time.time() + within:
        return _ok()
    return _failed(
        "Certificates expiring", expired=[{"certificate": str(tls.certificate), "not_after": expires}]
    )


def _expiry(path: str) -> float:
    """Return when the first certificate of a file expires, in seconds since 1970."""
    decode = getattr(ssl, "_ssl")._test_decode_cert  # noqa: B009 (the standard library's own decoder)
    return float(ssl.cert_time_to_seconds(decode(path)["notAfter"]))
