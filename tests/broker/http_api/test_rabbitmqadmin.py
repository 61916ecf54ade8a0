"""RabbitMQ's own command line tool for its HTTP API, `rabbitmqadmin`, used on Warren as an operator would."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker.http_api.conftest import base_url
from tests.support.in_process_broker import InProcessBroker

# Forty commands, each a process, and it needs RabbitMQ.
pytestmark = pytest.mark.slow

PATTERN = "lib/rabbitmq_server-*/plugins/rabbitmq_management-*/priv/www/cli/rabbitmqadmin"
VHOST = "shop"

Table = list[dict[str, object]]


class Admin:
    """`rabbitmqadmin`, as the user guest."""

    def __init__(self, script: Path, port: str) -> None:
        self._command = [sys.executable, str(script), "--host", "127.0.0.1", "--port", port]
        self.used = 0
        """Number of commands run."""

    def __call__(self, *words: str, within: str = VHOST, status: int = 0, **values: object) -> str:
        """Run a command, and return what it prints.

        :param within: the virtual host that it works in.
        :param values: its arguments `name=value`; what is no text becomes JSON.
        :param status: the expected exit status.
        """
        given = [
            f"{name.replace('apply_to', 'apply-to')}={value if isinstance(value, str) else json.dumps(value)}"
            for name, value in values.items()
        ]
        self.used += 1
        done = subprocess.run(
            [*self._command, "--vhost", within, *words, *given],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == status, done
        return (done.stdout if status == 0 else done.stdout + done.stderr).strip()

    def table(self, *words: str, within: str = VHOST) -> Table:
        """Run a command that lists objects, and return them."""
        rows: Table = json.loads(self("--format=raw_json", *words, within=within))
        return rows


@pytest.fixture
def admin(served: InProcessBroker) -> Admin:
    scripts = sorted(Path("/usr/lib/rabbitmq").glob(PATTERN))
    if not scripts:
        pytest.skip("rabbitmq-server is not installed")
    return Admin(scripts[-1], base_url(served).rpartition(":")[2])


def names(rows: Table) -> set[object]:
    return {row["name"] for row in rows}


def test_forty_commands_do_what_they_do_on_rabbitmq(admin: Admin, tmp_path: Path) -> None:
    assert "warren@localhost" in admin("show", "overview", within="/")
    assert admin("declare", "vhost", name=VHOST, within="/") == "vhost declared"
    assert admin("declare", "user", name="ann", password="secret", tags="monitoring") == "user declared"
    for user in ("ann", "guest"):
        admin("declare", "permission", vhost=VHOST, user=user, configure=".*", write=".*", read=".*")
    assert names(admin.table("list", "vhosts")) == {"/", VHOST}
    assert names(admin.table("list", "users")) == {"guest", "ann"}
    assert {"ann", "guest"} <= {row["user"] for row in admin.table("list", "permissions")}

    admin("declare", "exchange", name="sales", type="topic")
    limits = {"x-max-length": 5, "x-dead-letter-exchange": "sales"}
    assert admin("declare", "queue", name="orders", arguments=limits) == "queue declared"
    admin("declare", "queue", name="audit", queue_type="quorum")
    admin("declare", "queue", name="journal", queue_type="stream")
    assert "inequivalent arg" in admin("declare", "queue", name="orders", durable="false", status=1)
    admin("declare", "binding", source="sales", destination="orders", routing_key="order.*")
    admin("declare", "binding", source="sales", destination="audit", routing_key="#", arguments={"a": 1})
    sources = [
        (row["destination"], row["routing_key"]) for row in admin.table("list", "bindings") if row["source"]
    ]
    assert sorted(map(str, sources)) == ["('audit', '#')", "('orders', 'order.*')"]
    assert "sales" in names(admin.table("list", "exchanges"))

    properties = {"delivery_mode": 2, "headers": {"k": "v"}}
    published = admin(
        "publish", exchange="sales", routing_key="order.new", payload="one", properties=properties
    )
    assert published == "Message published"
    admin("publish", exchange="sales", routing_key="order.new", payload="dHdv", payload_encoding="base64")
    assert "NOT routed" in admin("publish", routing_key="nobody", payload="lost")
    assert "Not found" in admin("publish", exchange="missing", routing_key="x", payload="x", status=1)
    first = admin.table("get", "queue=orders", "ackmode=ack_requeue_true")
    assert [(row["payload"], row["properties"]) for row in first] == [("one", properties)]
    both = admin.table("get", "queue=orders", "count=5", "ackmode=ack_requeue_false")
    assert [row["payload"] for row in both] == ["one", "two"]
    assert admin("purge", "queue", name="audit") == "queue purged"

    admin(
        "declare",
        "policy",
        name="age",
        pattern="^orders",
        definition={"message-ttl": 60000},
        apply_to="queues",
    )
    admin(
        "declare",
        "operator_policy",
        name="cap",
        pattern=".*",
        definition={"max-length": 10},
        apply_to="queues",
    )
    assert "not recognised" in admin(
        "declare", "policy", name="bad", pattern=".*", definition={"nonsense": 1}, status=1
    )
    assert names(admin.table("list", "policies")) == {"age"}
    assert names(admin.table("list", "operator_policies")) == {"cap"}
    admin("declare", "vhost_limit", name="max-queues", value="100", vhost=VHOST)
    assert [row["value"] for row in admin.table("list", "vhost_limits")] == [{"max-queues": 100}]
    assert names(admin.table("list", "nodes")) == {"warren@localhost"}
    for empty in ("connections", "channels", "consumers"):
        assert admin.table("list", empty) == []

    exported = tmp_path / "definitions.json"
    admin("export", str(exported))
    key = "properties_key=order.%2A"
    admin("delete", "binding", key, source="sales", destination_type="queue", destination="orders")
    admin("delete", "queue", name="orders")
    assert "Not found" in admin("delete", "queue", name="orders", status=1)
    admin("import", str(exported))
    assert {row["name"]: row.get("policy") for row in admin.table("list", "queues")} == {
        "audit": None,
        "journal": None,
        "orders": "age",
    }
    admin("delete", "policy", name="age")
    admin("delete", "operator_policy", name="cap")
    admin("delete", "vhost_limit", name="max-queues", vhost=VHOST)
    admin("delete", "exchange", name="sales")
    assert "Not found" in admin("close", "connection", name="missing", status=1)
    assert "Access refused" in admin("-u", "ann", "-p", "wrong", "list", "queues", status=1)
    assert "Access refused" in admin("-u", "ann", "-p", "secret", "declare", "vhost", name="other", status=1)
    admin("delete", "permission", vhost=VHOST, user="ann")
    admin("delete", "user", name="ann")
    admin("delete", "vhost", name=VHOST, within="/")
    assert names(admin.table("list", "vhosts", within="/")) == {"/"}
    assert admin.used >= 40
