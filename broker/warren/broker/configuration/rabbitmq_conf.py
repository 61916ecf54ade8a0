"""Reader of rabbitmq.conf (https://www.rabbitmq.com/docs/configure#config-file).

Keys that have an equivalent Warren setting set it. Keys of RabbitMQ without one are ignored, and reported; unknown keys
are errors. As in RabbitMQ, a port without an address means that port on all addresses of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from warren.broker.access.login_backends import BACKENDS
from warren.broker.configuration.setting_keys import SETTINGS
from warren.broker.configuration.setting_sources import Settings, parse_setting
from warren.broker.process_memory import available_memory
from warren.core.errors import UsageError

EQUIVALENT_KEYS: Final = {
    "channel_max": "channel_max",
    "frame_max": "frame_max",
    "heartbeat": "heartbeat",
    "max_message_size": "max_message_size",
    "default_vhost": "default_vhost",
    "ssl_cert_login_from": "tls_login_from",
    "ssl_options.cacertfile": "tls_ca",
    "ssl_options.certfile": "tls_certificate",
    "ssl_options.keyfile": "tls_key",
    "ssl_options.password": "tls_key_password",
    "auth_oauth2.resource_server_id": "oauth2_resource_server_id",
    "auth_oauth2.issuer": "oauth2_issuer",
    "auth_oauth2.jwks_uri": "oauth2_jwks_uri",
    "auth_oauth2.jwks_url": "oauth2_jwks_uri",
    "auth_oauth2.https.cacertfile": "oauth2_ca",
    "auth_oauth2.default_key": "oauth2_default_key",
    "auth_oauth2.verify_aud": "oauth2_verify_aud",
    "auth_http.http_method": "auth_http_http_method",
    "auth_http.user_path": "auth_http_user_path",
    "auth_http.vhost_path": "auth_http_vhost_path",
    "auth_http.resource_path": "auth_http_resource_path",
    "auth_http.topic_path": "auth_http_topic_path",
    "auth_http.request_timeout": "auth_http_request_timeout",
    "auth_http.ssl_options.cacertfile": "auth_http_ca",
    "auth_cache.cache_ttl": "auth_cache_ttl",
    "vm_memory_high_watermark.absolute": "memory_limit",
    "disk_free_limit.absolute": "disk_free_limit",
    "load_definitions": "load_definitions",
    "definitions.local.path": "load_definitions",
    "proxy_protocol": "proxy_protocol",
    "management.load_definitions": "load_definitions",
    "consumer_timeout": "consumer_timeout",
    "management.tcp.port": "management_port",
    "management.tcp.ip": "management_host",
    "prometheus.tcp.port": "prometheus_port",
    "prometheus.tcp.ip": "prometheus_host",
}
"""Equivalent Warren setting of each key of rabbitmq.conf whose value needs no conversion."""

IGNORED_KEYS: Final = """
anonymous_login_pass auth_attempt_ auth_internal. auth_cache.cache_module auth_http.connection_timeout
background_gc_ backing_queue_module channel_max_per_node
channel_operation_timeout channel_tick_interval classic_queue. cluster_ collect_statistics consumer_max_per_channel
default_queue_type default_worker_pool_size definitions. delegate_count deprecated_features.
distribution. erlang. exchange_types. feature_flags. federation hipe_compile initial_frame_max
lazy_queue_explicit_gc_run_operation_threshold link_max_per_session load_definitions log. management.
management_agent. memory_monitor_interval message_store_shutdown_timeout metadata_store. mirroring_sync_ mnesia_
motd_file mqtt. msg_store_ net_ticktime node_tags. num_acceptors. password_hashing_module peer_discovery
prevent_startup_if_node_was_reset product. prometheus. queue_explicit_gc_run_operation_threshold queue_index_
queue_leader_locator queue_master_locator queue_types. quorum_queue. raft. ranch_connection_max reverse_dns_lookups
runtime_parameters. session_max_per_connection shovel socket_writer. ssl_allow_poodle_attack ssl_cert_login_san_
ssl_handshake_timeout ssl_options.bypass_pem_cache ssl_options.client_renegotiation ssl_options.depth
ssl_options.dh ssl_options.honor_ ssl_options.log_ ssl_options.reuse_session ssl_options.secure_renegotiate
statistics. stomp. stream. sysmon_handler. tcp_listen_options total_memory_available_override_value tracing
vhost_max vhost_restart_strategy vm_memory_calculation_strategy vm_memory_high_watermark_paging_ratio web_mqtt.
web_stomp.
"""
"""Keys of rabbitmq.conf, or prefixes of keys, without an equivalent in Warren: they are ignored, and reported."""

FIXED_VALUES: Final = {
    "auth_cache": (),
    "auth_http.ssl_options.verify": ("verify_peer",),
    "auth_http.ssl_options.fail_if_no_peer_cert": ("true", "false"),
    "auth_http": (),
    "auth_ldap": (),
    "auth_oauth2.https.depth": ("10",),
    "auth_oauth2.https.hostname_verification": ("wildcard",),
    "auth_oauth2.https.peer_verification": ("verify_peer",),
    "auth_oauth2.https.crl_check": ("false",),
    "auth_oauth2.https.fail_if_no_peer_cert": ("true", "false"),
    "auth_oauth2": (),
    "credential_validator": ("rabbit_credential_validator_accept_everything",),
    "default_limits": (),
    "default_permissions": (".*",),
    "default_policies": (),
    "default_user_tags": ("true",),
    "default_users": (),
    "message_interceptors": (),
    "ssl_options.cacerts": (),
    "ssl_options.cert": (),
    "ssl_options.crl_check": ("false",),
    "ssl_options.key": (),
    "ssl_options.psk_identity": (),
    "trust_store": (),
}
"""Keys of rabbitmq.conf, or prefixes of keys, with the values that Warren supports; any other value is an error."""

ENCRYPTED: Final = "encrypted:"
"""Beginning of a value that `rabbitmqctl encrypt_conf_value` has encrypted."""

LOG_LEVELS: Final = {
    "critical": "error",
    "none": "error",
    "notice": "info",
    "alert": "error",
    "emergency": "error",
}


@dataclass
class Line:
    """Value of one line of rabbitmq.conf, with its origin (file and line number) for error texts."""

    value: str
    origin: str


@dataclass
class GroupedLines:
    """Lines of rabbitmq.conf whose keys number the items of a list, such as `listeners.tcp.1` and `listeners.tcp.2`.

    Each attribute holds the lines of one list, by the last part of their key: `1` and `2` in this example.
    """

    tcp: dict[str, Line] = field(default_factory=dict)
    ssl: dict[str, Line] = field(default_factory=dict)
    mechanisms: dict[str, Line] = field(default_factory=dict)
    versions: dict[str, Line] = field(default_factory=dict)
    ciphers: dict[str, Line] = field(default_factory=dict)
    loopback: dict[str, Line] = field(default_factory=dict)
    backends: dict[str, Line] = field(default_factory=dict)
    cached: dict[str, Line] = field(default_factory=dict)
    algorithms: dict[str, Line] = field(default_factory=dict)
    claims: dict[str, Line] = field(default_factory=dict)
    keys: dict[str, Line] = field(default_factory=dict)
    aliases: dict[str, Line] = field(default_factory=dict)


def read_rabbitmq_conf(path: Path, environment: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """Read rabbitmq.conf. Return the settings, and the ignored keys, each as text such as `KEY (line 3)`.

    :param environment: values of the variables `$(NAME)` in the file, by name; others are empty
    :raises UsageError: if the file cannot be read, or with the number of a line that RabbitMQ would refuse
    """
    lines = _lines(path, environment)
    settings: Settings = {}
    grouped = GroupedLines()
    ignored = []
    for key, line in lines.items():
        if key in EQUIVALENT_KEYS and EQUIVALENT_KEYS[key] in SETTINGS:
            settings[EQUIVALENT_KEYS[key]] = parse_setting(EQUIVALENT_KEYS[key], line.value, line.origin)
        elif key in CONVERTED_KEYS:
            name, parse = CONVERTED_KEYS[key]
            settings[name] = parse_setting(name, _parsed(key, parse, line), line.origin)
        elif not _group_line(key, line, grouped) and not _has_fixed_value(key, line):
            if not key.startswith(tuple(IGNORED_KEYS.split())):
                raise UsageError(f"{line.origin}: RabbitMQ has no key {key!r}")
            ignored.append(f"{key} (line {line.origin.rpartition(' ')[2]})")
    _set_users(lines, settings)
    _set_tls_verify(lines, settings)
    _set_list_settings(grouped, settings)
    return settings, tuple(ignored)


def _lines(path: Path, environment: Mapping[str, str]) -> dict[str, Line]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    found = {}
    for number, row in enumerate(text.splitlines(), 1):
        row = re.sub(r"(?<!\\)#.*", "", row).replace("\\#", "#").strip()
        if not row:
            continue
        key, separator, value = (part.strip() for part in row.partition("="))
        origin = f"{path}, line {number}"
        if not separator or not key or not value:
            raise UsageError(f"{origin}: a line must be `key = value`")
        value = re.sub(r"\$\((\w+)\)", lambda name: environment.get(name[1], ""), value)
        if len(value) > 1 and value[0] == value[-1] == "'":
            value = value[1:-1]
        if value.startswith(ENCRYPTED):
            raise UsageError(
                f"{origin}: the value of {key} is encrypted, and Warren reads plain values only; decrypt it with "
                "`warren ctl decrypt_conf_value`, and pass it in a variable: `$(NAME)`"
            )
        found[key] = Line(value, origin)
    return found


def _parsed(key: str, parse: Callable[[str], object], line: Line) -> object:
    try:
        return parse(line.value)
    except (ValueError, KeyError):
        raise UsageError(f"{line.origin}: {line.value!r} is not a valid value of {key}") from None


def _log_level(value: str) -> str:
    return LOG_LEVELS.get(value, value)


def _relative(value: str) -> float:
    return float(value)


CONVERTED_KEYS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "handshake_timeout": ("handshake_timeout", lambda value: int(value) / 1000),
    "connection_max": ("max_connections", lambda value: "none" if value == "infinity" else value),
    "message_interceptors.incoming.set_header_timestamp.overwrite": (
        "timestamps",
        lambda value: {"true": "always", "false": "missing"}[value],
    ),
    "auth_oauth2.additional_scopes_key": ("oauth2_additional_scopes_key", str.split),
    "auth_oauth2.scope_prefix": ("oauth2_scope_prefix", str),
    "anonymous_login_user": ("anonymous_user", lambda value: "" if value == "none" else value),
    "vm_memory_high_watermark.relative": ("memory_limit", _relative),
    "disk_free_limit.relative": ("disk_free_limit", lambda value: int(float(value) * available_memory())),
    "log.console.level": ("log_level", _log_level),
    "log.default.level": ("log_level", _log_level),
    "log.file.level": ("log_level", _log_level),
    "log.console.formatter": ("log_json", lambda value: value == "json"),
    "log.file.formatter": ("log_json", lambda value: value == "json"),
}
"""Equivalent Warren setting of each key of rabbitmq.conf, with the function that converts the value."""


def _group_line(key: str, line: Line, grouped: GroupedLines) -> bool:
    for prefix, kept in (
        ("listeners.tcp", grouped.tcp),
        ("listeners.ssl", grouped.ssl),
        ("auth_mechanisms", grouped.mechanisms),
        ("ssl_options.versions", grouped.versions),
        ("ssl_options.ciphers", grouped.ciphers),
        ("loopback_users", grouped.loopback),
        ("auth_backends", grouped.backends),
        ("auth_cache.cached_backend", grouped.cached),
        ("auth_oauth2.algorithms", grouped.algorithms),
        ("auth_oauth2.preferred_username_claims", grouped.claims),
        ("auth_oauth2.signing_keys", grouped.keys),
        ("auth_oauth2.scope_aliases", grouped.aliases),
    ):
        if key == prefix or key.startswith(prefix + "."):
            kept[key.removeprefix(prefix).removeprefix(".")] = line
            return True
    return key in ("default_user", "default_pass", "ssl_options.verify", "ssl_options.fail_if_no_peer_cert")


def _has_fixed_value(key: str, line: Line) -> bool:
    """Return True if Warren supports only certain values of the key, and the line has one of them.

    :raises UsageError: if the line has another value
    """
    for prefix, values in FIXED_VALUES.items():
        if key == prefix or key.startswith(prefix + "."):
            if line.value in values:
                return True
            supported = f"; only {' or '.join(values)} is" if values else ""
            raise UsageError(f"{line.origin}: {key} = {line.value} is not supported{supported}")
    return False


def _set_users(lines: Mapping[str, Line], settings: Settings) -> None:
    user, password = lines.get("default_user"), lines.get("default_pass")
    line = user or password
    if line is not None:
        pair = {user.value if user else "guest": password.value if password else "guest"}
        settings["users"] = parse_setting("users", pair, line.origin)


def _set_tls_verify(lines: Mapping[str, Line], settings: Settings) -> None:
    verify, required = lines.get("ssl_options.verify"), lines.get("ssl_options.fail_if_no_peer_cert")
    if verify is None:
        return
    if verify.value not in ("verify_peer", "verify_none"):
        raise UsageError(f"{verify.origin}: ssl_options.verify must be verify_peer or verify_none")
    wanted = "none"
    if verify.value == "verify_peer":
        wanted = "required" if required is not None and required.value == "true" else "optional"
    settings["tls_verify"] = parse_setting("tls_verify", wanted, verify.origin)


def _set_list_settings(grouped: GroupedLines, settings: Settings) -> None:
    """Set the settings whose value is a list; rabbitmq.conf has one key for each item, such as `listeners.tcp.1`."""
    ciphers = [line.value for line in grouped.ciphers.values() if not line.value.startswith("TLS_")]
    users = {"guest": True}
    for name, line in grouped.loopback.items():
        if name:
            users[name] = line.value == "true"
        else:
            users.clear()
    for name, found, values in (
        ("listeners", grouped.tcp, [_address(line.value) for line in _items(grouped.tcp)]),
        ("tls_listeners", grouped.ssl, [_address(line.value) for line in _items(grouped.ssl)]),
        ("mechanisms", grouped.mechanisms, [line.value for line in _items(grouped.mechanisms)]),
        (
            "tls_versions",
            grouped.versions,
            [line.value.removeprefix("tlsv") for line in _items(grouped.versions)],
        ),
        ("tls_ciphers", grouped.ciphers, ":".join(ciphers)),
        ("auth_backends", grouped.backends, _backends(grouped.backends, grouped.cached)),
        ("oauth2_algorithms", grouped.algorithms, [line.value for line in _items(grouped.algorithms)]),
        (
            "oauth2_preferred_username_claims",
            grouped.claims,
            [line.value for line in _items(grouped.claims)],
        ),
        ("oauth2_signing_keys", grouped.keys, {name: line.value for name, line in grouped.keys.items()}),
        ("oauth2_scope_aliases", grouped.aliases, _aliases(grouped.aliases)),
        ("loopback_users", grouped.loopback, [user for user, local in users.items() if local]),
    ):
        if found:
            settings[name] = parse_setting(name, values, next(iter(found.values())).origin)


def _items(found: Mapping[str, Line]) -> list[Line]:
    """Return the lines of one list, without those of the form `key = none`, such as `listeners.tcp = none`.

    :param found: lines by the last part of their keys, such as the `1` of `listeners.tcp.1`; the result is sorted by it
    """
    return [found[name] for name in sorted(found) if found[name].value != "none"]


def _backends(lines: Mapping[str, Line], cached: Mapping[str, Line]) -> list[str]:
    """Return the back ends of lines `auth_backends.N`, or pairs `auth_backends.N.authn` and `.authz`, in their order.

    :param cached: lines `auth_cache.cached_backend`, which name what the back end `cache` stands for
    :raises UsageError: if Warren has no such back end
    """
    found = []
    for number in sorted({name.partition(".")[0] for name in lines}):
        whole = lines.get(number)
        parts = [lines[name] for name in (f"{number}.authn", f"{number}.authz") if name in lines]
        names = [_backend(line, cached) for line in ([whole] if whole is not None else parts)]
        found.append(":".join(dict.fromkeys(names)))
    return found


def _backend(line: Line, cached: Mapping[str, Line]) -> str:
    """Return the back end that a line names, perhaps as RabbitMQ's module.

    :raises UsageError: if Warren has no such back end
    """
    name = line.value.removeprefix("rabbit_auth_backend_")
    if name == "cache" and cached:
        return ":".join(dict.fromkeys(_backend(cached[part], {}) for part in sorted(cached)))
    if name not in BACKENDS:
        raise UsageError(
            f"{line.origin}: auth_backends = {line.value} is not supported; only {', '.join(BACKENDS)} are"
        )
    return name


def _aliases(lines: Mapping[str, Line]) -> dict[str, str]:
    """Return the scopes of each alias, from lines `scope_aliases.ALIAS`, or pairs `.N.alias` and `.N.scope`."""
    found = {}
    for name, line in lines.items():
        number, _, part = name.rpartition(".")
        if part == "alias" and f"{number}.scope" in lines:
            found[line.value] = lines[f"{number}.scope"].value
        elif not (part == "scope" and f"{number}.alias" in lines):
            found[name] = line.value
    return found


def _address(value: str) -> str:
    return f"0.0.0.0:{value}" if value.isdecimal() else value
