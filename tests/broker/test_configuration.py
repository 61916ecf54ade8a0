"""Configuration: sources and their precedence, rabbitmq.conf, and errors."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.broker_process import READY, BrokerProcess, warren
from tests.support.processes import Child
from tests.support.raw_client import RawClient
from warren.broker.access.access_service.access_service_config import AccessServiceConfig
from warren.broker.access.oauth2.oauth2_config import OAuth2Config
from warren.broker.configuration.config_loader import format_config, load_config
from warren.broker.configuration.setting_keys import SETTINGS, LogConfig
from warren.broker.configuration.setting_sources import RunConfig
from warren.broker.process_memory import available_memory
from warren.core.errors import UsageError
from warren.core.log_output import JsonLines


def loaded(*arguments: str | Path, **environment: str) -> RunConfig:
    return load_config([str(word) for word in arguments], environment)[0]


def refusal(*arguments: str | Path, **environment: str) -> str:
    with pytest.raises(UsageError) as caught:
        loaded(*arguments, **environment)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "warren.toml"


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    return tmp_path / "rabbitmq.conf"


def test_a_flag_overrides_the_environment_and_that_a_file_and_that_the_default(
    toml: Path, conf: Path
) -> None:
    conf.write_text("heartbeat = 1\nchannel_max = 1\nframe_max = 10001\nmax_message_size = 1000\n")
    toml.write_text("heartbeat = 2\nchannel_max = 2\nframe_max = 10002\n")
    arguments = ["--rabbitmq-conf", str(conf), "--config", str(toml), "--heartbeat", "4"]
    config = loaded(*arguments, WARREN_BROKER_CHANNEL_MAX="3", WARREN_BROKER_HEARTBEAT="3")
    broker = config.broker
    assert (broker.heartbeat, broker.channel_max, broker.frame_max) == (4, 3, 10002)
    assert (broker.max_message_size, broker.port) == (1000, 5672)
    assert config.origins == {
        "heartbeat": "--heartbeat",
        "channel_max": "WARREN_BROKER_CHANNEL_MAX",
        "frame_max": f"{toml}, line 3",
        "max_message_size": f"{conf}, line 4",
    }
    in_environment = loaded(WARREN_BROKER_CONFIG=str(toml), WARREN_BROKER_RABBITMQ_CONF=str(conf))
    assert (in_environment.broker.heartbeat, in_environment.broker.max_message_size) == (2, 1000)


def test_all_kinds_of_values_from_every_source(toml: Path, tmp_path: Path) -> None:
    toml.write_text(
        f"""
        data_dir = "{tmp_path}/data"
        listeners = ["127.0.0.1:5672", 5673]
        max_connections = 10
        max_message_size = "1MiB"
        handshake_timeout = 2.5
        memory_limit = "400MB"
        memory_alarm = false
        mechanisms = ["PLAIN"]
        log_json = true

        [tls]
        listeners = [5671]
        certificate = "server.pem"
        key = "server.key"
        key_password = "opensesame"
        ca = "ca.pem"
        verify = "required"
        versions = ["1.3"]

        [users]
        ann = "secret"
        """
    )
    config = loaded("--config", toml)
    broker = config.broker
    assert broker.data_dir == tmp_path / "data"
    assert [str(address) for address in broker.addresses] == ["127.0.0.1:5672", "127.0.0.1:5673"]
    assert [str(address) for address in broker.tls_addresses] == ["127.0.0.1:5671"]
    assert (broker.max_connections, broker.max_message_size, broker.handshake_timeout) == (10, 1024**2, 2.5)
    assert (broker.memory_bytes, broker.memory_alarm, broker.mechanisms) == (400_000_000, False, ("PLAIN",))
    assert broker.users == {"ann": "secret"}
    tls = broker.tls
    assert (tls.certificate, tls.verify, tls.versions) == (Path("server.pem"), "required", ("1.3",))
    assert config.log == LogConfig(log_json=True)
    in_environment = loaded(
        WARREN_BROKER_LISTENERS="127.0.0.1:5672,5673",
        WARREN_BROKER_USERS="ann:se:cret, bob:b",
        WARREN_BROKER_MEMORY_ALARM="off",
        WARREN_BROKER_MEMORY_LIMIT="0.5",
        WARREN_BROKER_MAX_CONNECTIONS="none",
        WARREN_BROKER_TLS_VERSIONS="1.2,1.3",
        WARREN_BROKER_LOG_LEVEL="debug",
    )
    assert in_environment.broker.listeners == ("127.0.0.1:5672", "5673")
    assert in_environment.broker.users == {"ann": "se:cret", "bob": "b"}
    assert in_environment.broker.memory_bytes == int(0.5 * available_memory())
    assert in_environment.broker.max_connections is None
    assert loaded(WARREN_BROKER_USERS="").broker.users == {}
    assert in_environment.log.log_level == "debug"
    assert loaded("--memory-alarm", "false").broker.memory_alarm is False
    assert loaded("--log-json").log.log_json is True
    assert loaded("--loopback-users", "").broker.loopback_users == ()


@pytest.mark.parametrize(
    ("text", "error_text"),
    [
        ("prot = 1", "line 1: no setting 'prot'; did you mean 'port'?"),
        ("port = 1\n\n[tls]\ncertifcate = ''", "line 4: no setting 'tls_certifcate'; did you mean 'tls_certificate'"),
        ("\n# port\nport = 'abc'", "line 3: port: 'abc' is not an integer"),
        ("host = 1", "line 1: host: 1 is not a text"),
        ("port = 70000", "line 1: port is 70000; it must be between 0 and 65535"),
        ("port = true", "line 1: port: True is not an integer"),
        ("memory_alarm = 3", "line 1: memory_alarm: 3 is neither true nor false"),
        ("memory_limit = 1.5", "line 1: memory_limit is 1.5; as a fraction it must be above 0 and at most 1"),
        ("listeners = ['x:y']", "line 1: listeners has 'x:y'; an address is host:port, [host]:port, or a port"),
        ("mechanisms = ['LOGIN']", "line 1: mechanisms has 'LOGIN'; the mechanisms are PLAIN, AMQPLAIN, EXTERNAL, "),
        ("log_level = 'loud'", "line 1: log_level: 'loud' is not one of debug, info, warning, error"),
        ("[users]\nann = ''", "line 1: users: it must be a table of texts"),
        ("[tls]\nlisteners = [1]", "line 2: tls_listeners is set; it needs tls_certificate and tls_key"),
        ("port = x", "Invalid value (at line 1, column 8)"),
    ],
)  # fmt: skip
def test_an_error_in_a_file_has_the_line(toml: Path, text: str, error_text: str) -> None:
    toml.write_text(text)
    found = refusal("--config", toml)
    assert found.startswith(str(toml))
    assert error_text in found


def test_an_error_elsewhere_has_the_flag_or_variable(tmp_path: Path) -> None:
    assert refusal("--port", "x") == "--port: port: 'x' is not an integer"
    assert refusal("--prot", "1").startswith("unrecognized arguments: --prot 1")
    assert refusal(WARREN_BROKER_PORT="x") == "WARREN_BROKER_PORT: port: 'x' is not an integer"
    assert refusal("--heartbeat", "70000").startswith("--heartbeat: heartbeat is 70000; it must be")
    missing = tmp_path / "missing"
    assert refusal("--config", missing) == f"cannot read {missing}: No such file or directory"
    assert refusal("--rabbitmq-conf", missing) == f"cannot read {missing}: No such file or directory"
    # An error does not contain a password.
    assert "secret" not in refusal(WARREN_BROKER_USERS="ann:secret,bob")


def test_an_unknown_variable_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown variables are not an error: Kubernetes sets such variables for a service of this name."""
    config = loaded(WARREN_BROKER_SERVICE_HOST="10.0.0.1", WARREN_BROKERAGE="x")
    assert config.ignored == {"environment": ("WARREN_BROKER_SERVICE_HOST",)}


def test_the_printed_configuration_is_equivalent(toml: Path) -> None:
    toml.write_text(
        'heartbeat = 7\nmechanisms = ["PLAIN"]\n[users]\nann = "verysecret"\n[tls]\nkey_password = "k3y"\n'
    )
    config = loaded("--config", toml, "--host", "::1", "--memory-limit", "0.25")
    text = format_config(config)
    assert "verysecret" not in text
    assert "k3y" not in text
    assert f"heartbeat = 7  # {toml}, line 1" in text.splitlines()
    assert 'host = "::1"  # --host' in text.splitlines()
    assert "channel_max = 2047  # default" in text.splitlines()
    again = toml.with_name("again.toml")
    again.write_text(text + '\n[users]\nann = "verysecret"\n')
    repeated = loaded("--config", again).broker
    assert repeated.tls.key_password == ""
    assert vars(repeated) | {"tls": None, "memory_limit": None} == vars(config.broker) | {
        "tls": None,
        "memory_limit": None,
    }
    assert repeated.memory_bytes == config.broker.memory_bytes
    assert set(tomllib.loads(text)) < set(SETTINGS)


def test_without_a_data_folder_the_default_one_is_used(tmp_path: Path) -> None:
    home = {"XDG_DATA_HOME": str(tmp_path)}
    assert loaded(**home).broker.data_dir == tmp_path / "warren" / "broker"
    assert f'data_dir = "{tmp_path}/warren/broker"  # default' in format_config(loaded(**home))
    assert loaded("--in-memory").broker.data_dir is None
    assert "in_memory = true  # --in-memory" in format_config(loaded("--in-memory"))
    assert loaded(WARREN_BROKER_IN_MEMORY="yes").broker.data_dir is None
    assert list(tmp_path.iterdir()) == []


def test_a_data_folder_and_memory_exclude_each_other(tmp_path: Path) -> None:
    assert "--in-memory" in refusal("--in-memory", "--data-dir", tmp_path)
    assert "in_memory" in refusal("--data-dir", "none")
    assert "WARREN_BROKER_DATA_DIR" in refusal(WARREN_BROKER_DATA_DIR="")


def test_the_documentation_lists_every_setting_and_its_example_is_valid() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "configuration.md").read_text()
    assert [name for name in SETTINGS if f"`{name}`" not in page] == []
    assert loaded("--config", root / "examples" / "warren.toml").broker.users == {"admin": "change me"}
    oauth2 = loaded("--config", root / "examples" / "oauth2.toml")
    assert oauth2.broker.auth_backends == ("oauth2", "internal")
    assert oauth2.broker.oauth2.scope_aliases == {
        "developer": "rabbitmq.tag:management rabbitmq.read:*/* rabbitmq.write:dev/*/*"
    }
    assert 'oauth2_scope_aliases = {"developer" = "rabbitmq.tag:management' in format_config(oauth2)
    assert (
        loaded("--config", root / "examples" / "access_service.toml").broker.auth_http.http_method == "post"
    )


# -- rabbitmq.conf


def test_a_rabbitmq_conf_becomes_settings(conf: Path) -> None:
    conf.write_text(
        """# https://www.rabbitmq.com/docs/configure
listeners.tcp.2 = 127.0.0.1:5673
listeners.tcp.1 = 5672
listeners.ssl.default = 5671
ssl_options.cacertfile = /etc/ca.pem
ssl_options.certfile   = /etc/server.pem   # the chain
ssl_options.keyfile    = /etc/server.key
ssl_options.password   = 't#p'
ssl_options.verify     = verify_peer
ssl_options.fail_if_no_peer_cert = true
ssl_options.versions.1 = tlsv1.2
ssl_options.versions.2 = tlsv1.3
ssl_options.ciphers.1 = TLS_AES_256_GCM_SHA384
ssl_options.ciphers.2 = ECDHE-ECDSA-AES256-GCM-SHA384
ssl_options.ciphers.3 = ECDHE-RSA-AES256-GCM-SHA384
ssl_cert_login_from = common_name
auth_mechanisms.1 = EXTERNAL
auth_mechanisms.2 = PLAIN
auth_backends.1 = internal
default_user = ann
default_pass = $(PASSWORD)
default_vhost = blue
default_user_tags.administrator = true
default_permissions.configure = .*
loopback_users.ann = true
loopback_users.guest = false
heartbeat = 30
frame_max = 65536
channel_max = 100
connection_max = infinity
max_message_size = 134217728
handshake_timeout = 5000
vm_memory_high_watermark.relative = 0.6
disk_free_limit.absolute = 2GB
log.console.level = warning
log.console.formatter = json
log.file = rabbit.log
queue_master_locator = min-masters
backing_queue_module = rabbit_priority_queue
lazy_queue_explicit_gc_run_operation_threshold = 1000
queue_explicit_gc_run_operation_threshold = 1000
management.tcp.port = 15672
prometheus.tcp.port = 15693
prometheus.tcp.ip = 127.0.0.2
prometheus.return_per_object_metrics = true
cluster_name = blue
queue_index_embed_msgs_below = 4096
load_definitions = /etc/definitions.json
consumer_timeout = 60000
message_interceptors.incoming.set_header_timestamp.overwrite = false
""".replace("'t#p'", "'t\\#p'")
    )
    config = loaded("--rabbitmq-conf", conf, PASSWORD="from-outside")
    broker, tls = config.broker, config.broker.tls
    # A port alone is a port of all addresses of the machine.
    assert [str(address) for address in broker.addresses] == ["0.0.0.0:5672", "127.0.0.1:5673"]
    assert [str(address) for address in broker.tls_addresses] == ["0.0.0.0:5671"]
    assert (tls.certificate, tls.key, tls.ca) == (
        Path("/etc/server.pem"),
        Path("/etc/server.key"),
        Path("/etc/ca.pem"),
    )
    assert (tls.key_password, tls.verify, tls.versions) == ("t#p", "required", ("1.2", "1.3"))
    assert tls.ciphers == "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384"
    assert (tls.login_from, broker.mechanisms) == ("common_name", ("EXTERNAL", "PLAIN"))
    assert (broker.users, broker.default_vhost) == ({"ann": "from-outside"}, "blue")
    assert broker.loopback_users == ("ann",)
    assert (broker.heartbeat, broker.frame_max, broker.channel_max) == (30, 65536, 100)
    assert (broker.max_connections, broker.max_message_size, broker.handshake_timeout) == (None, 2**27, 5.0)
    assert (broker.memory_limit, broker.disk_free_bytes) == (0.6, 2 * 10**9)
    assert broker.load_definitions == Path("/etc/definitions.json")
    assert (broker.consumer_timeout, broker.timestamps) == (60000, "missing")
    assert (broker.prometheus_port, broker.prometheus_host) == (15693, "127.0.0.2")
    assert config.log == LogConfig(log_level="warning", log_json=True)
    assert config.ignored[str(conf)] == (
        "log.file (line 37)",
        "queue_master_locator (line 38)",
        "backing_queue_module (line 39)",
        "lazy_queue_explicit_gc_run_operation_threshold (line 40)",
        "queue_explicit_gc_run_operation_threshold (line 41)",
        "prometheus.return_per_object_metrics (line 45)",
        "cluster_name (line 46)",
        "queue_index_embed_msgs_below (line 47)",
    )


@pytest.mark.parametrize(
    ("text", "error_text"),
    [
        ("\nlisteners.tpc.1 = 5672", "line 2: RabbitMQ has no key 'listeners.tpc.1'"),
        ("ssl_options.verfy = verify_peer", "line 1: RabbitMQ has no key 'ssl_options.verfy'"),
        ("heartbeat", "line 1: a line must be `key = value`"),
        ("default_pass = encrypted:abc", "line 1: the value of default_pass is encrypted, and Warren reads plain values"),
        ("heartbeat = soon", "line 1: heartbeat: 'soon' is not an integer"),
        ("handshake_timeout = soon", "line 1: 'soon' is not a valid value of handshake_timeout"),
        ("message_interceptors.incoming.set_header_timestamp.overwrite = 1", "line 1: '1' is not a valid value of message"),
        ("message_interceptors.outgoing.timestamp.enabled = true", "line 1: message_interceptors.outgoing"),
        ("auth_backends.1 = ldap", "line 1: auth_backends = ldap is not supported; only internal, oauth2, http are"),
        ("default_permissions.configure = ^$", "line 1: default_permissions.configure = ^$ is not supported; only .* is"),
        ("default_users.x.password = y", "line 1: default_users.x.password = y is not supported"),
        ("ssl_options.crl_check = true", "line 1: ssl_options.crl_check = true is not supported; only false is"),
        ("ssl_options.verify = yes", "line 1: ssl_options.verify must be verify_peer or verify_none"),
        ("ssl_cert_login_from = subject_alternative_name", "line 1: tls_login_from: 'subject_alternative_name' is not one"),
        ("auth_mechanisms.1 = RABBIT-CR-DEMO", "line 1: mechanisms has 'RABBIT-CR-DEMO'"),
        ("listeners.tcp = none", "line 1: listeners is empty, and there are no tls_listeners, so no client could connect"),
    ],
)  # fmt: skip
def test_an_error_in_a_rabbitmq_conf_has_the_line(conf: Path, text: str, error_text: str) -> None:
    conf.write_text(text + "\n")
    assert f"{conf}, {error_text}" in refusal("--rabbitmq-conf", conf)


# -- the command


@pytest.mark.processes
def test_the_command_reads_its_file(tmp_path: Path, toml: Path) -> None:
    toml.write_text('heartbeat = 7\nlog_json = true\n[users]\nann = "secret"\n')
    with BrokerProcess(tmp_path / "data", "--config", str(toml)) as broker:
        with RawClient(broker.url.replace("amqp://", "amqp://ann:secret@")) as peer:
            assert peer.log_in().heartbeat == 7
        assert broker.child is not None
        lines = broker.child.errors.splitlines()
    assert lines
    for line in map(json.loads, lines):
        assert {"time", "level", "logger", "message"} <= set(line)


@pytest.mark.processes
def test_the_first_users_are_created_once(tmp_path: Path) -> None:
    """The password in the configuration is used at the first start only; then that in the data folder applies."""
    for password, right in (("old", "old"), ("new", "old")):
        with BrokerProcess(tmp_path / "data", env={"WARREN_BROKER_USERS": f"ann:{password}"}) as broker:  # noqa: SIM117
            with RawClient(broker.url.replace("amqp://", f"amqp://ann:{right}@")) as peer:
                peer.connect().open().sync()


@pytest.mark.processes
def test_the_command_prints_its_settings() -> None:
    words = [str(word) for word in warren("broker", "--print-config", "--port", "0")]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert "port = 0  # --port" in ran.stdout
    assert ran.stderr == ""


@pytest.mark.processes
def test_the_soft_limit_of_open_files_is_raised(tmp_path: Path) -> None:
    program = (
        "import resource, subprocess, sys;"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1];"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard));"
        "import os; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    command = [str(word) for word in warren("broker", "--port", "0", "--in-memory")]
    with Child([sys.executable, "-c", program, *command[1:]]) as child:
        child.wait_for_line(READY)
        (line,) = [
            line
            for line in Path(f"/proc/{child.pid}/limits").read_text().splitlines()
            if line.startswith("Max open files")
        ]
        soft, hard = line.split()[3:5]
        assert soft == hard != "256"


def test_an_exception_in_the_log_is_one_line_of_json() -> None:
    try:
        raise ValueError("wrong\nor not")
    except ValueError:
        record = logging.LogRecord("a.b", logging.ERROR, "f", 1, "event=%s", ("x",), sys.exc_info())
    text = JsonLines().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert (line["level"], line["logger"], line["message"]) == ("error", "a.b", "event=x")
    assert "ValueError: wrong" in line["exception"]


def test_only_a_broker_with_the_usual_port_serves_http_by_itself() -> None:
    usual, other = loaded().broker, loaded("--port", "5673").broker
    assert (usual.management_port, usual.prometheus_port) == (15672, 15692)
    assert (other.management_port, other.prometheus_port) == (None, None)
    assert loaded("--prometheus-port", "none").broker.prometheus_port is None
    assert loaded("--port", "5673", "--prometheus-port", "15693").broker.prometheus_port == 15693


def test_the_keys_of_rabbitmqs_oauth_2_plugin_set_warrens(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("")
    conf = tmp_path / "rabbitmq.conf"
    conf.write_text(
        f"""
auth_backends.1 = rabbit_auth_backend_oauth2
auth_backends.2 = rabbit_auth_backend_internal
auth_oauth2.resource_server_id = rabbitmq
auth_oauth2.issuer = https://issuer.example/realm
auth_oauth2.jwks_uri = https://issuer.example/jwks
auth_oauth2.signing_keys.one = {tmp_path}/key.pem
auth_oauth2.default_key = one
auth_oauth2.algorithms.1 = RS256
auth_oauth2.algorithms.2 = ES256
auth_oauth2.scope_prefix = api.
auth_oauth2.additional_scopes_key = roles realm.roles
auth_oauth2.scope_aliases.admin = rabbitmq.tag:administrator rabbitmq.read:*/*
auth_oauth2.scope_aliases.1.alias = api://reader
auth_oauth2.scope_aliases.1.scope = rabbitmq.read:*/*
auth_oauth2.preferred_username_claims.1 = user_name
auth_oauth2.preferred_username_claims.2 = email
auth_oauth2.verify_aud = false
auth_oauth2.https.peer_verification = verify_peer
auth_oauth2.https.cacertfile = {tmp_path}/key.pem
"""
    )

    config, _ = load_config(["--in-memory", "--rabbitmq-conf", str(conf)], {})

    assert config.broker.auth_backends == ("oauth2", "internal")
    assert config.broker.oauth2 == OAuth2Config(
        resource_server_id="rabbitmq",
        scope_prefix="api.",
        issuer="https://issuer.example/realm",
        jwks_uri="https://issuer.example/jwks",
        ca=tmp_path / "key.pem",
        signing_keys={"one": f"{tmp_path}/key.pem"},
        default_key="one",
        algorithms=("RS256", "ES256"),
        verify_aud=False,
        additional_scopes_key=("roles", "realm.roles"),
        scope_aliases={
            "admin": "rabbitmq.tag:administrator rabbitmq.read:*/*",
            "api://reader": "rabbitmq.read:*/*",
        },
        preferred_username_claims=("user_name", "email"),
    )


def test_the_keys_of_rabbitmqs_http_back_end_and_its_cache_set_warrens(conf: Path) -> None:
    conf.write_text(
        """
auth_backends.1 = cache
auth_backends.2.authn = rabbit_auth_backend_http
auth_backends.2.authz = internal
auth_backends.3 = internal
auth_cache.cached_backend = http
auth_cache.cache_ttl = 5000
auth_http.http_method = post
auth_http.user_path = https://access.example/user
auth_http.vhost_path = https://access.example/vhost
auth_http.resource_path = https://access.example/resource
auth_http.topic_path = https://access.example/topic
auth_http.request_timeout = 2000
auth_http.ssl_options.cacertfile = /etc/ca.pem
auth_http.ssl_options.verify = verify_peer
"""
    )

    config, _ = load_config(["--in-memory", "--rabbitmq-conf", str(conf)], {})

    assert config.broker.auth_backends == ("http", "http:internal", "internal")
    assert config.broker.auth_cache_ttl == 5000
    assert config.broker.auth_http == AccessServiceConfig(
        http_method="post",
        user_path="https://access.example/user",
        vhost_path="https://access.example/vhost",
        resource_path="https://access.example/resource",
        topic_path="https://access.example/topic",
        request_timeout=2000,
        ca=Path("/etc/ca.pem"),
    )


def test_the_name_of_a_control_group_may_have_any_bytes(tmp_path: Path) -> None:
    name = os.fsdecode(b"gr\xf6up")
    group = tmp_path / "cgroup" / name
    group.mkdir(parents=True)
    (group / "memory.max").write_bytes(b"1048576\n")
    membership = tmp_path / "membership"
    membership.write_bytes(b"0::/gr\xf6up\n")
    assert available_memory(tmp_path / "cgroup", membership) == 1_048_576
