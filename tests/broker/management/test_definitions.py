"""Definitions: export and import in RabbitMQ's format, between Warren brokers and with RabbitMQ itself."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.blocking_client import Channel, Closed, Connection
from tests.support.in_process_broker import InProcessBroker
from tests.support.operator_cli import Operator, warren_ctl
from tests.support.rabbitmq import RabbitMQ, installed, rabbitmq_server
from warren.broker import BrokerConfig
from warren.broker.management.boot_definitions import DefinitionsError
from warren.broker.model.policy.runtime_parameters import RuntimeParameters
from warren.cli.definitions import main as definitions_command
from warren.core.errors import UsageError

Definitions = dict[str, Any]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[InProcessBroker]:
    with InProcessBroker(tmp_path / "data") as broker:
        yield broker


@pytest.fixture
def operator(broker: InProcessBroker) -> Operator:
    assert broker.data_dir is not None
    return Operator(warren_ctl(broker.data_dir), broker.url, is_warren=True)


def export(operator: Operator) -> Definitions:
    result = operator.run("export_definitions", "-")
    assert result.status == 0, result
    found: Definitions = json.loads(result.output)
    return found


def load(operator: Operator, tmp_path: Path, definitions: Any) -> None:
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(definitions))
    operator("import_definitions", str(file))


def refusal(operator: Operator, tmp_path: Path, definitions: Any) -> str:
    file = tmp_path / "wrong.json"
    file.write_text(json.dumps(definitions))
    result = operator.refused("import_definitions", str(file))
    assert result.count("\n") == 1
    return result.removeprefix("warren ctl: ").rstrip("\n")


def comparable(definitions: Definitions) -> Definitions:
    """Remove differences without meaning: versions, order of lists, and objects that RabbitMQ 3.10 exports as pairs."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if (
            isinstance(value, list)
            and value
            and all(isinstance(item, list) and len(item) == 2 for item in value)
        ):
            return {key: plain(item) for key, item in value}
        if isinstance(value, list):
            return sorted((plain(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
        return value

    found: Definitions = plain({key: definitions[key] for key in definitions if "version" not in key})
    found.pop("product_name", None)
    for vhost in found["vhosts"]:
        # Exported twice, for old and new readers. Limits are exported as runtime parameters.
        for key in ("description", "tags", "default_queue_type", "limits"):
            vhost.pop(key, None)
    # An exchange and a parameter of RabbitMQ 4.3 itself.
    found["exchanges"] = [each for each in found["exchanges"] if each["name"] != "amq.rabbitmq.log"]
    found["global_parameters"] = [
        each for each in found["global_parameters"] if each["name"] != "cluster_tags"
    ]
    return found


def build(operator: Operator) -> None:
    """Declare at least one object of each kind."""
    with Connection(operator.url) as connection:
        channel = connection.channel()
        channel.declare_exchange("orders", "topic", durable=True, alternate_exchange="stray")
        channel.declare_exchange("stray", "fanout", durable=True)
        channel.declare_exchange("by-header", "headers", durable=True)
        channel.declare(
            "billing", durable=True, x_message_ttl=60000, x_dead_letter_exchange="stray", x_max_priority=5
        )
        channel.declare("safe", durable=True, x_queue_type="quorum")
        channel.declare("events", durable=True, x_queue_type="stream", x_max_age="1D")
        channel.declare("passing")
        channel.declare(exclusive=True)
        channel.bind("billing", "orders", "order.*")
        channel.bind("billing", "amq.topic", "all.#")
        channel.bind("safe", "stray")
    operator("add_vhost", "other", "--description", "Another")
    operator("add_user", "ann", "sesame")
    operator("set_user_tags", "ann", "monitoring", "policymaker")
    operator("set_permissions", "ann", "^ann-", ".*", "^$")
    operator("set_permissions", "-p", "other", "ann", ".*", ".*", ".*")
    operator("set_topic_permissions", "ann", "amq.topic", "^a", "^b")
    operator("set_user_limits", "ann", '{"max-connections":3}')
    operator("set_vhost_limits", "-p", "other", '{"max-queues":7}')
    operator("set_policy", "ttl", "^b", '{"message-ttl":30000}', "--priority", "2", "--apply-to", "queues")
    operator("set_policy", "-p", "other", "caught", "", '{"alternate-exchange":"stray"}')
    operator("set_operator_policy", "bound", ".*", '{"max-length":1000}')
    operator("set_global_parameter", "motto", '{"in":["vino","veritas"]}')


def test_an_export_contains_every_object(operator: Operator) -> None:
    build(operator)
    found = export(operator)
    assert {queue["name"] for queue in found["queues"]} == {"billing", "safe", "events", "passing"}
    (billing,) = [queue for queue in found["queues"] if queue["name"] == "billing"]
    assert billing == {
        "vhost": "/",
        "name": "billing",
        "type": "classic",
        "durable": True,
        "auto_delete": False,
        "arguments": {
            "x-message-ttl": 60000,
            "x-dead-letter-exchange": "stray",
            "x-max-priority": 5,
            "x-queue-type": "classic",
        },
    }
    (other,) = [vhost for vhost in found["vhosts"] if vhost["name"] == "other"]
    assert other == {
        "name": "other",
        "limits": {"max-queues": 7},
        "metadata": {"description": "Another", "tags": [], "default_queue_type": "classic"},
    }
    assert found["rabbit_version"] == found["rabbitmq_version"] == "4.3.6"
    assert {exchange["name"] for exchange in found["exchanges"]} == {"orders", "stray", "by-header"}
    assert {(each["source"], each["routing_key"]) for each in found["bindings"]} == {
        ("orders", "order.*"),
        ("amq.topic", "all.#"),
        ("stray", ""),
    }
    (ann,) = [user for user in found["users"] if user["name"] == "ann"]
    assert (ann["tags"], ann["limits"]) == (["monitoring", "policymaker"], {"max-connections": 3})
    assert ann["hashing_algorithm"] == "rabbit_password_hashing_sha256"
    assert "sesame" not in json.dumps(found)
    assert found["policies"] == [
        {
            "vhost": "/",
            "name": "ttl",
            "pattern": "^b",
            "apply-to": "queues",
            "definition": {"message-ttl": 30000},
            "priority": 2,
        },
        {
            "vhost": "other",
            "name": "caught",
            "pattern": "",
            "apply-to": "all",
            "definition": {"alternate-exchange": "stray"},
            "priority": 0,
        },
    ]


def test_imported_definitions_are_exported_again(operator: Operator, tmp_path: Path) -> None:
    build(operator)
    found = export(operator)
    with InProcessBroker(tmp_path / "second") as second:
        other = Operator(warren_ctl(tmp_path / "second"), second.url, is_warren=True)
        load(other, tmp_path, found)
        assert export(other) == found
        # An import is idempotent, and survives a restart.
        load(other, tmp_path, found)
        assert export(other) == found
        second.restart()
        restarted = export(other)
        found["queues"] = [queue for queue in found["queues"] if queue["durable"]]
        assert restarted == found
        with Connection(second.url.replace("guest:guest", "ann:sesame") + "other") as connection:
            connection.channel()


@pytest.fixture(scope="module", params=["3.10", "4.3"])
def fresh_rabbitmq(request: pytest.FixtureRequest) -> Iterator[RabbitMQ]:
    """Start a RabbitMQ for this test alone, because definitions change users and virtual hosts."""
    version: str = request.param
    if not installed(version):
        pytest.skip(f"RabbitMQ {version} is not installed")
    with rabbitmq_server(version=version) as server:
        yield server


def test_rabbitmq_imports_what_warren_exports_and_the_reverse(
    fresh_rabbitmq: RabbitMQ, tmp_path: Path
) -> None:
    config = BrokerConfig(compat="4.3" if fresh_rabbitmq.version.startswith("4.") else "3.10")
    with InProcessBroker(tmp_path / "data", config=config) as broker:
        operator = Operator(warren_ctl(tmp_path / "data"), broker.url, is_warren=True)
        build(operator)
        ours = export(operator)
    # RabbitMQ's user must be able to read the file.
    file = Path(fresh_rabbitmq.folder) / "ours.json"
    file.write_text(json.dumps(ours))
    os.chmod(file, 0o644)
    fresh_rabbitmq.ctl("import_definitions", fresh_rabbitmq.inside(file))
    theirs = json.loads(fresh_rabbitmq.ctl("export_definitions", "-"))
    assert comparable(theirs) == comparable(ours)
    with Connection(fresh_rabbitmq.url.replace("guest:guest", "ann:sesame")) as connection:
        connection.channel()
    with InProcessBroker(tmp_path / "second", config=config) as second:
        other = Operator(warren_ctl(tmp_path / "second"), second.url, is_warren=True)
        load(other, tmp_path, theirs)
        assert comparable(export(other)) == comparable(theirs)
        with Connection(second.url.replace("guest:guest", "ann:sesame")) as connection:
            connection.channel()
        # The imported queues behave as the exported ones.
        with Connection(second.url) as connection:
            channel = connection.channel()
            channel.publish("order.new", b"x", exchange="orders", mandatory=True)
            assert channel.ready("billing") == 1


def test_the_format_follows_the_imitated_version(tmp_path: Path) -> None:
    """RabbitMQ 3.10 reads the description of a virtual host at its top level only."""
    with InProcessBroker(tmp_path / "data", config=BrokerConfig(compat="3.10")) as broker:
        operator = Operator(warren_ctl(tmp_path / "data"), broker.url, is_warren=True)
        build(operator)
        found = export(operator)
        load(operator, tmp_path, found)
        assert export(operator) == found
    assert found["rabbit_version"] == "3.10.8"
    (other,) = [vhost for vhost in found["vhosts"] if vhost["name"] == "other"]
    described = {"description": "Another", "tags": []}
    assert other == {"name": "other", "limits": [], "metadata": described, **described}
    assert not any(
        "x-queue-type" in each["arguments"] for each in found["queues"] if each["type"] == "classic"
    )


@pytest.mark.parametrize("compat", ["4.3", "3.10"])
def test_an_imported_queue_without_a_type_gets_the_default_one_of_its_virtual_host(
    tmp_path: Path, compat: str
) -> None:
    with InProcessBroker(tmp_path / "data", config=BrokerConfig(compat=compat)) as broker:
        operator = Operator(warren_ctl(tmp_path / "data"), broker.url, is_warren=True)
        queues: dict[str, dict[str, Any]] = {
            "untyped": {"durable": True},
            # RabbitMQ before 3.12 exports so, and later versions import it as the default type.
            "of a type": {"durable": True, "type": "classic"},
            "classic": {"durable": True, "arguments": {"x-queue-type": "classic"}},
            "auto-delete": {"durable": True, "auto_delete": True},
            "transient": {"durable": False},
        }
        metadata = {"default_queue_type": "quorum"}
        load(
            operator,
            tmp_path,
            {
                "vhosts": [{"name": "v", "metadata": metadata}],
                "permissions": [
                    {"user": "guest", "vhost": "v", "configure": ".*", "write": ".*", "read": ".*"}
                ],
                "queues": [{"vhost": "v", "name": name, **queue} for name, queue in queues.items()],
            },
        )
        with Connection(f"{broker.url.rstrip('/')}/v") as connection:
            channel = connection.channel()
            channel.declare("untyped", durable=True)
            channel.declare("of a type", durable=True)
        found = export(operator)
        types = {queue["name"]: queue["type"] for queue in found["queues"]}
        assert types == {
            "untyped": "quorum",
            "of a type": "quorum",
            "classic": "classic",
            "auto-delete": "classic",
            "transient": "classic",
        }
        # What is exported is imported as it was.
        operator("delete_vhost", "v")
        load(operator, tmp_path, found)
        assert {queue["name"]: queue["type"] for queue in export(operator)["queues"]} == types


def test_existing_queues_and_exchanges_stay_unchanged(operator: Operator, tmp_path: Path) -> None:
    with Connection(operator.url) as connection:
        channel = connection.channel()
        channel.declare("mine", durable=True, x_max_length=5)
        channel.publish("mine", b"x")
        load(
            operator,
            tmp_path,
            {"queues": [{"vhost": "/", "name": "mine", "durable": True, "arguments": {"x-max-length": 1}}]},
        )
        channel.declare("mine", durable=True, x_max_length=5)
        assert channel.ready("mine") == 1


def parameters_of(broker: InProcessBroker) -> RuntimeParameters:
    assert broker.broker is not None
    assert broker.broker._management is not None
    return broker.broker._management.parameters


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_a_number_that_json_cannot_have_is_refused_wherever_it_comes_from(
    operator: Operator, tmp_path: Path, number: str
) -> None:
    before = export(operator)
    file = tmp_path / "definitions.json"
    text = f'{{"queues": [{{"vhost": "/", "name": "q", "arguments": {{"x-mine": {number}}}}}]}}'
    file.write_text(text)
    assert "JSON" in operator.refused("import_definitions", str(file))
    assert "JSON" in operator.refused("set_global_parameter", "motto", f"[{number}]")
    with pytest.raises(DefinitionsError, match="are not JSON"):
        InProcessBroker(config=BrokerConfig(load_definitions=file)).__enter__()
    assert export(operator) == before


def test_such_a_number_that_an_earlier_version_stored_becomes_null(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path) as broker:
        parameters = parameters_of(broker)
        broker.call(lambda: parameters.set_global("motto", [float("nan"), 1]))
    with InProcessBroker(tmp_path) as broker:
        assert parameters_of(broker).globals["motto"] == [None, 1]


WRONG: list[tuple[Any, str]] = [
    ([], "the definitions must be a JSON object"),
    ({"queues": {}}, "queues must be a list"),
    ({"queues": ["x"]}, "queues[0] must be an object"),
    ({"queues": [{"vhost": "/"}]}, "queues[0] 'None' in vhost '/': name is missing"),
    (
        {"queues": [{"vhost": "nowhere", "name": "q"}]},
        "queues[0] 'q' in vhost 'nowhere': virtual host 'nowhere' does not exist",
    ),
    (
        {"queues": [{"vhost": "/", "name": "q", "arguments": {"x-max-length": -1}}]},
        "queues[0] 'q' in vhost '/': invalid arg 'x-max-length' for queue 'q' in vhost '/': {value_negative,-1}",
    ),
    (
        {"queues": [{"vhost": "/", "name": "q", "durable": 1}]},
        "queues[0] 'q' in vhost '/': durable must be true or false",
    ),
    (
        {"exchanges": [{"vhost": "/", "name": "e", "type": "cow"}]},
        "exchanges[0] 'e' in vhost '/': unknown exchange type 'cow'",
    ),
    (
        {
            "bindings": [
                {"vhost": "/", "source": "amq.topic", "destination": "nobody", "destination_type": "queue"}
            ]
        },
        "bindings[0] 'amq.topic -> nobody' in vhost '/': no queue 'nobody' in vhost '/'",
    ),
    *(
        (
            {kind: [{"vhost": "/", "name": "n" * 256, "type": "direct"}]},
            f"{kind}[0] '{'n' * 256}' in vhost '/': name should be at most 255 bytes, actually was 256",
        )
        for kind in ("queues", "exchanges")
    ),
    (
        {"bindings": [{"vhost": "/", "source": "a", "destination": "x", "routing_key": "\u00e9" * 128}]},
        "bindings[0] 'a -> x' in vhost '/': routing_key should be at most 255 bytes, actually was 256",
    ),
    (
        {"policies": [{"vhost": "/", "name": "p", "pattern": ".*", "definition": {"max-length": -1}}]},
        "policies[0] 'p' in vhost '/': -1 is not a valid maximum length",
    ),
    (
        {"permissions": [{"vhost": "/", "user": "who", "configure": "", "write": "", "read": ""}]},
        "permissions[0] 'who' in vhost '/': user 'who' does not exist",
    ),
    (
        {"users": [{"name": "ann", "password_hash": "???", "tags": []}]},
        "users[0] 'ann': the password hash is not the base64 form of a 4-byte salt and a hash of "
        "rabbit_password_hashing_sha256",
    ),
    (
        {"vhosts": [{"name": "v", "limits": {"max-cows": 1}}]},
        "vhosts[0] 'v': Validation failed: Unrecognised terms [{<<\"max-cows\">>,1}] in limits",
    ),
]


@pytest.mark.parametrize(("definitions", "text"), WRONG, ids=[text[:40] for _, text in WRONG])
def test_an_invalid_definition_is_named_and_nothing_changes(
    operator: Operator, tmp_path: Path, definitions: Any, text: str
) -> None:
    before = export(operator)
    if isinstance(definitions, dict):
        # Valid definitions before it, which must not be applied either.
        definitions = {
            "vhosts": [{"name": "fine"}],
            "exchanges": [{"vhost": "/", "name": "fine", "type": "direct"}],
            **definitions,
        }
    assert refusal(operator, tmp_path, definitions) == text
    assert export(operator) == before


def test_a_file_that_has_no_definitions(operator: Operator, tmp_path: Path) -> None:
    result = operator.run("import_definitions", str(tmp_path / "missing.json"))
    assert (result.status, result.errors) == (
        74,
        f"warren ctl: cannot read {tmp_path / 'missing.json'}: No such file or directory\n",
    )
    (tmp_path / "bad.json").write_text("{")
    result = operator.run("import_definitions", str(tmp_path / "bad.json"))
    assert result.status == 2
    assert result.errors.startswith(f"warren ctl: {tmp_path / 'bad.json'} is not JSON: ")


def test_definitions_have_their_own_command(
    operator: Operator, broker: InProcessBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = str(tmp_path / "all.json"), str(broker.data_dir)
    assert definitions_command(["export", file, "--data-dir", folder]) == 0
    assert json.loads(Path(file).read_text()) == export(operator)
    assert definitions_command(["--data-dir", folder, "import", file, "-q"]) == 0
    assert definitions_command([]) == 2
    assert "usage: warren definitions export|import FILE" in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"write `export FILE` or `import FILE`, not 'exprot all.json'"):
        definitions_command(["exprot", "all.json"])


def test_the_reader_of_an_export_may_close_the_pipe(operator: Operator, broker: InProcessBroker) -> None:
    command = [sys.executable, "-m", "warren.cli.dispatch", "definitions", "export", "-"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*command, "--data-dir", str(broker.data_dir)], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_only_the_owner_may_read_an_exported_file(operator: Operator, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    operator("export_definitions", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_text())["users"][0]["name"] == "guest"


def test_an_internal_exchange_is_exported(operator: Operator, tmp_path: Path) -> None:
    exchange = {"vhost": "/", "name": "inner", "type": "fanout", "internal": True}
    load(operator, tmp_path, {"exchanges": [exchange]})
    (found,) = export(operator)["exchanges"]
    assert found["internal"] is True

    def publish(channel: Channel) -> None:
        channel.publish("", b"x", exchange="inner")
        channel.ready("none")

    with Connection(operator.url) as connection, pytest.raises(Closed, match="internal exchange"):
        publish(connection.channel())


# -- at boot


def test_bindings_of_exchanges_that_rabbitmq_leaves_out_are_skipped(
    operator: Operator, tmp_path: Path
) -> None:
    """An export of RabbitMQ has no internal exchanges, but their bindings."""
    ends = [("kept", "hidden", "exchange"), ("hidden", "q", "queue"), ("kept", "q", "queue")]
    bindings = [
        {
            "vhost": "/",
            "source": source,
            "destination": destination,
            "destination_type": kind,
            "routing_key": "k",
        }
        for source, destination, kind in ends
    ]
    exchanges = [{"vhost": "/", "name": "kept", "type": "topic", "durable": True}]
    queues = [{"vhost": "/", "name": "q", "durable": True}]
    load(operator, tmp_path, {"exchanges": exchanges, "queues": queues, "bindings": bindings})

    assert [(each["source"], each["destination"]) for each in export(operator)["bindings"]] == [("kept", "q")]


def test_bindings_of_the_default_exchange_are_skipped(operator: Operator, tmp_path: Path) -> None:
    bindings = [
        {"vhost": "/", "source": "", "destination": "q", "destination_type": "queue", "routing_key": "k"},
        {"vhost": "/", "source": "", "destination": "amq.topic", "destination_type": "exchange"},
        {"vhost": "/", "source": "amq.topic", "destination": "", "destination_type": "exchange"},
    ]
    load(operator, tmp_path, {"queues": [{"vhost": "/", "name": "q"}], "bindings": bindings})

    assert not export(operator)["bindings"]


def test_a_stored_binding_of_the_default_exchange_or_a_long_name_does_not_refuse_imports(
    operator: Operator, broker: InProcessBroker, tmp_path: Path
) -> None:
    """Earlier versions let clients of the HTTP API make both."""

    def store() -> None:
        assert broker.broker is not None
        topology = broker.broker.virtual_hosts.declarations[b"/"]
        queue = topology.declare_queue(b"q" * 256, True, False, False, b"", None)
        topology.bind(topology.exchange(b""), queue, b"k", b"")

    broker.call(store)
    broker.restart()

    load(operator, tmp_path, {"queues": [{"vhost": "/", "name": "new"}]})

    assert {queue["name"] for queue in export(operator)["queues"]} == {"q" * 256, "new"}


def test_definitions_are_loaded_at_every_start(tmp_path: Path) -> None:
    hashed = "BohNcBsf4CnLBwtD4DcqR+F732sm/MvMrxN//oTUI3doyioU"
    algorithm = "rabbit_password_hashing_sha256"
    user = {"name": "bob", "password_hash": hashed, "hashing_algorithm": algorithm, "tags": ["administrator"]}
    permission = {"user": "bob", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    folder = tmp_path / "definitions"
    folder.mkdir()
    (folder / "1.json").write_text(json.dumps({"users": [user], "permissions": [permission]}))
    (folder / "2.json").write_text(json.dumps({"queues": [{"vhost": "/", "name": "work"}]}))
    config = BrokerConfig(load_definitions=folder)
    with InProcessBroker(tmp_path / "data", config=config) as broker:
        operator = Operator(warren_ctl(tmp_path / "data"), broker.url, is_warren=True)
        # The users are those of the file; the default user with its known password is not added.
        assert operator("list_users") == ["user\ttags", "bob\t[administrator]"]
        assert operator("authenticate_user", "bob", "secret") == ["Success"]
        assert operator("list_queues") == ["name\tmessages", "work\t0"]
        operator("delete_queue", "work")
        broker.restart()
        assert operator("list_queues") == ["name\tmessages", "work\t0"]


@pytest.mark.processes
def test_a_broker_in_memory_may_have_a_socket_and_definitions(tmp_path: Path) -> None:
    (tmp_path / "queues.json").write_text(json.dumps({"queues": [{"vhost": "/", "name": "work"}]}))
    config = BrokerConfig(control_socket=tmp_path / "here.sock", load_definitions=tmp_path / "queues.json")
    with InProcessBroker(config=config) as broker, Connection(broker.url) as connection:
        assert connection.channel().ready("work") == 0
        output = subprocess.run(
            [sys.executable, "-c", CTL, "--socket", str(tmp_path / "here.sock"), "-q", "list_queues"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert output == "name\tmessages\nwork\t0\n"


CTL = "import sys; from warren.cli.ctl.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "the definitions {file} are not JSON: "),
        (
            '{"queues": [{"vhost": "/"}]}',
            "the definitions {file} are refused: queues[0] 'None' in vhost '/': name",
        ),
        (None, "cannot read the definitions {file}: No such file or directory"),
    ],
)
def test_a_broker_does_not_start_with_invalid_definitions(
    tmp_path: Path, content: str | None, text: str
) -> None:
    file = tmp_path / "wrong.json"
    if content is not None:
        file.write_text(content)
    config = BrokerConfig(load_definitions=file)
    with pytest.raises(DefinitionsError) as refused, InProcessBroker(tmp_path / "data", config=config):
        pass
    assert str(refused.value).startswith(text.format(file=file))
