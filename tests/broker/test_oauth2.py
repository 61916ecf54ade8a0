"""Logins with OAuth 2 access tokens: what is verified, keys of a JWKS, expiry and renewal."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from hmac import digest
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker

from tests.broker.conftest import pass_time
from tests.support.blocking_client import Connection
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.polling import wait_until
from tests.support.raw_client import RawClient
from tests.support.tokens import Issuer, JwksServer, segment, unsigned
from warren.broker import BrokerConfig
from warren.broker.access.oauth2 import signing_keys
from warren.broker.access.oauth2.oauth2_config import OAuth2Config
from warren.broker.access.oauth2.scopes import MOST_SCOPES, TooManyScopes, scopes_of

ALL = "rabbitmq.read:*/*/* rabbitmq.write:*/*/* rabbitmq.configure:*/*"
ADMIN = f"{ALL} rabbitmq.tag:administrator"


def configured(oauth2: OAuth2Config, *backends: str) -> BrokerConfig:
    return BrokerConfig(
        auth_backends=backends or ("internal", "oauth2"),
        oauth2=oauth2,
        login_failure_delay=0,
        handshake_timeout=PATIENCE,
        management_port=0,
    )


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def settings(issuer: Issuer, tmp_path: Path) -> OAuth2Config:
    return OAuth2Config(resource_server_id="rabbitmq", signing_keys=issuer.write_keys(tmp_path))


@pytest.fixture
def broker(settings: OAuth2Config) -> Iterator[InProcessBroker]:
    with InProcessBroker(config=configured(settings)) as broker:
        yield broker


def url_with(broker: InProcessBroker, token: str) -> str:
    assert broker.broker is not None
    return f"amqp://anybody:{quote(token, safe='')}@127.0.0.1:{broker.broker.port}/"


def whoami(broker: InProcessBroker, token: str) -> tuple[int, Any]:
    assert broker.broker is not None
    api = HttpApi(f"http://{broker.broker.management_addresses[0]}")
    found = api.ask("GET", "whoami", headers={"Authorization": f"Bearer {token}"})
    return found.status, found.body


@pytest.mark.parametrize("kid", ["rsa", "ec", "ed"])
def test_a_token_logs_in_over_amqp_and_http(broker: InProcessBroker, issuer: Issuer, kid: str) -> None:
    token = issuer.token(kid, scope=ADMIN)

    with Connection(url_with(broker, token)) as connection:
        name = connection.channel().declare()
        assert name
        status, found = whoami(broker, token)

    assert status == 200
    assert (found["name"], found["tags"]) == ("bob", ["administrator"])


def test_passwords_of_internal_users_stay_valid_beside_tokens(broker: InProcessBroker) -> None:
    with Connection(broker.url) as connection:
        assert connection.channel().declare()


def test_a_token_is_a_password_in_the_http_api_too(broker: InProcessBroker, issuer: Issuer) -> None:
    assert broker.broker is not None
    base = f"http://{broker.broker.management_addresses[0]}"

    assert HttpApi(base, "", issuer.token(scope=ADMIN)).get("whoami")["name"] == "bob"


def test_the_scopes_of_a_token_hold_in_the_http_api(broker: InProcessBroker, issuer: Issuer) -> None:
    assert broker.broker is not None
    token = issuer.token(scope="rabbitmq.configure:%2F/mine* rabbitmq.tag:management")
    headers = {"Authorization": f"Bearer {token}"}
    api = HttpApi(f"http://{broker.broker.management_addresses[0]}")

    assert api.ask("PUT", "queues/%2f/mine", {}, headers).status == 201
    assert api.ask("PUT", "queues/%2f/yours", {}, headers).status == 401
    assert api.ask("GET", "users", headers=headers).status == 401
    assert api.ask("PUT", "vhosts/other").status == 201
    assert api.ask("GET", "queues/other", headers=headers).status == 404


def tampered(issuer: Issuer) -> dict[str, str]:
    """Return tokens that must be refused, by what is wrong with them."""
    good = issuer.token(scope=ADMIN)
    header, payload, signature = good.split(".")
    claims: dict[str, Any] = {"aud": "rabbitmq", "sub": "bob", "exp": time.time() + 3600, "scope": ADMIN}
    public = issuer.public["rsa"]
    found = {
        "no signature": f"{header}.{payload}.",
        "two parts": f"{header}.{payload}",
        "four parts": f"{good}.",
        "five parts": f"{good}..",
        "empty": "..",
        "changed payload": f"{header}.{segment(json.dumps({**claims, 'sub': 'root'}).encode())}.{signature}",
        "changed header": f"{segment(json.dumps({'alg': 'RS256', 'kid': 'rsa', 'x': 1}).encode())}.{payload}.{signature}",
        "none": unsigned({"alg": "none", "kid": "rsa"}, claims),
        "None": unsigned({"alg": "None", "kid": "rsa"}, claims),
        "none with a signature": f"{segment(json.dumps({'alg': 'none', 'kid': 'rsa'}).encode())}.{payload}.{signature}",
        "no algorithm": unsigned({"kid": "rsa"}, claims),
        "a list of algorithms": unsigned({"alg": ["RS256"], "kid": "rsa"}, claims),
        "another key": Issuer().token(scope=ADMIN),
        "key of another type": issuer.token("ec", {"kid": "rsa"}, scope=ADMIN),
        "ES256 with an Ed25519 key": issuer.token("ec", {"kid": "ed"}, scope=ADMIN),
        "unknown key": issuer.token(header={"kid": "nobody"}, scope=ADMIN),
        "key id as a path": issuer.token(header={"kid": "../rsa"}, scope=ADMIN),
        "no key id": issuer.token(header={"kid": None}, scope=ADMIN),
        "key in the header": issuer.token(
            header={"kid": "mine", "jwk": issuer.jwks("rsa")["keys"][0]}, scope=ADMIN
        ),
        "unknown critical header": f"{segment(json.dumps({'alg': 'RS256', 'kid': 'rsa', 'crit': ['x'], 'x': 1}).encode())}"
        f".{payload}.{signature}",
        "expired": issuer.token(scope=ADMIN, exp=int(time.time()) - 1),
        "no expiry": issuer.token(scope=ADMIN, exp=None),
        "expiry as text": issuer.token(scope=ADMIN, exp="9999999999"),
        "expiry as truth": issuer.token(scope=ADMIN, exp=True),
        "expiry as a list": issuer.token(scope=ADMIN, exp=[9999999999]),
        "expiry without a number": issuer.token(scope=ADMIN, exp=float("nan")),
        "infinite expiry": issuer.token(scope=ADMIN, exp=float("inf")),
        "enormous expiry": issuer.token(scope=ADMIN, exp=10**400),
        "not yet valid": issuer.token(scope=ADMIN, nbf=time.time() + 600),
        "other audience": issuer.token(scope=ADMIN, aud="else"),
        "audience with our beginning": issuer.token(scope=ADMIN, aud="rabbitmq2"),
        "audience as an object": issuer.token(scope=ADMIN, aud={"rabbitmq": 1}),
        "no audience": issuer.token(scope=ADMIN, aud=None),
        "no tag": issuer.token(scope=ALL),
        "tag of another server": issuer.token(scope="other.tag:administrator"),
        "name of 256 bytes": issuer.token(scope=ADMIN, sub="x" * 256),
        "empty name": issuer.token(scope=ADMIN, sub=""),
        "half a character": issuer.token(scope=ADMIN, sub="\ud800"),
    }
    for name, secret in (("PEM", public), ("PEM without its line end", public.rstrip(b"\n"))):
        head = segment(json.dumps({"alg": "HS256", "kid": "rsa"}).encode())
        signed = f"{head}.{payload}"
        found[f"HMAC with the public key: {name}"] = (
            f"{signed}.{segment(digest(secret, signed.encode(), sha256))}"
        )
    for index in range(0, len(good), 37):
        # The last character of a part has bits that count for nothing.
        other = "A" if good[index] != "A" else "B"
        if good[index] != "." and index not in (len(header) - 1, len(header) + len(payload), len(good) - 1):
            found[f"character {index} changed"] = good[:index] + other + good[index + 1 :]
    for index in (1, len(header), len(good) // 2, len(good) - 2):
        found[f"cut at {index}"] = good[:index]
    for odd in (b"[]", b"7", b'"x"', b"", b"\xff", b"[" * 1500):
        found[f"payload {odd[:8]!r}"] = f"{header}.{segment(odd)}.{signature}"
        found[f"header {odd[:8]!r}"] = f"{segment(odd)}.{payload}.{signature}"
    return found


def test_a_token_that_was_tampered_with_is_refused(broker: InProcessBroker, issuer: Issuer) -> None:
    assert whoami(broker, issuer.token(scope=ADMIN))[0] == 200

    cases = tampered(issuer)
    statuses = {name: whoami(broker, token)[0] for name, token in cases.items()}

    assert len(cases) > 60
    assert {name: status for name, status in statuses.items() if status != 401} == {}
    assert whoami(broker, issuer.token(scope=ADMIN))[0] == 200


def test_an_algorithm_that_is_not_configured_is_refused(settings: OAuth2Config, issuer: Issuer) -> None:
    with InProcessBroker(config=configured(replace(settings, algorithms=("ES256",)))) as broker:
        assert whoami(broker, issuer.token("ec", scope=ADMIN))[0] == 200
        assert whoami(broker, issuer.token("rsa", scope=ADMIN))[0] == 401


def test_leeway_and_audience_are_settings(settings: OAuth2Config, issuer: Issuer) -> None:
    with InProcessBroker(config=configured(replace(settings, leeway=300, verify_aud=False))) as broker:
        assert whoami(broker, issuer.token(scope=ADMIN, aud=None, nbf=time.time() + 100))[0] == 200
        assert whoami(broker, issuer.token(scope=ADMIN, exp=int(time.time()) - 100))[0] == 200
        assert whoami(broker, issuer.token(scope=ADMIN, exp=int(time.time()) - 400))[0] == 401


def test_a_token_with_too_many_scopes_is_refused(settings: OAuth2Config) -> None:
    claims = {"scope": " ".join(f"rabbitmq.read:{n}/*" for n in range(MOST_SCOPES + 1))}

    with pytest.raises(TooManyScopes, match="it has 2049 scopes; 2048 are allowed"):
        scopes_of(claims, settings)


# -- expiry and renewal


def connect_with(broker: InProcessBroker, token: str) -> pika.BlockingConnection:
    """Connect with a token; no heartbeat ends the connection when the test moves the time."""
    assert broker.broker is not None
    credentials = pika.PlainCredentials("x", token)
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", broker.broker.port, "/", credentials, heartbeat=0)
    )


def let_tokens_expire(broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have more than an hour pass: on the calendar, and for the timers of the broker."""
    calendar = time.time
    monkeypatch.setattr(time, "time", lambda: calendar() + 3601)
    pass_time(broker, 3601)


def test_a_connection_is_closed_when_its_token_expires(
    broker: InProcessBroker, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect_with(broker, issuer.token(scope=ALL))
    let_tokens_expire(broker, monkeypatch)

    with pytest.raises(ConnectionClosedByBroker, match=r"\(320, .CONNECTION_FORCED - credential expired"):
        connection.process_data_events(time_limit=PATIENCE)


def test_a_new_token_keeps_a_connection_open_and_changes_its_permissions(
    broker: InProcessBroker, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect_with(broker, issuer.token(scope=ALL)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("kept")
        channel.basic_publish("", "kept", b"1")

        later = issuer.token(scope="rabbitmq.read:*/*", exp=int(time.time()) + 7200)
        connection.update_secret(later, "renewal")
        let_tokens_expire(broker, monkeypatch)

        assert channel.basic_get("kept")[2] == b"1"
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
            channel.basic_publish("", "kept", b"2")


@pytest.mark.parametrize("wrong", ["junk", "other user", "other virtual host"])
def test_a_wrong_new_token_closes_the_connection(broker: InProcessBroker, issuer: Issuer, wrong: str) -> None:
    token = {
        "junk": "junk",
        "other user": issuer.token(scope=ALL, sub="carol"),
        "other virtual host": issuer.token(scope="rabbitmq.read:other/*"),
    }[wrong]
    connection = connect_with(broker, issuer.token(scope=ALL))

    with pytest.raises(ConnectionClosedByBroker, match=r"\(530,"):
        connection.update_secret(token, "renewal")


# -- keys


@pytest.fixture
def server(starts_processes: None, tmp_path: Path) -> Iterator[JwksServer]:
    with JwksServer(tmp_path) as server:
        yield server


def fetched(server: JwksServer, **more: Any) -> OAuth2Config:
    return OAuth2Config(
        resource_server_id="rabbitmq",
        **{"jwks_uri": f"{server.url}/jwks", "ca": server.authority.certificate, **more},
    )


def publish_keys(server: JwksServer, issuer: Issuer, *names: str) -> None:
    server.documents["/jwks"] = json.dumps(issuer.jwks(*names)).encode()


def test_keys_are_fetched_at_the_first_login_and_again_for_an_unknown_key(
    server: JwksServer, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_keys(server, issuer, "rsa")
    with InProcessBroker(config=configured(fetched(server))) as broker:
        assert server.requests == []
        with Connection(url_with(broker, issuer.token(scope=ALL))) as connection:
            assert connection.channel().declare()
        assert whoami(broker, issuer.token(scope=ADMIN))[0] == 200
        assert server.requests == ["/jwks"]

        publish_keys(server, issuer, "ec")
        assert whoami(broker, issuer.token("ec", scope=ADMIN))[0] == 401
        assert server.requests == ["/jwks"], "unknown key ids cause no storm of fetches"
        monkeypatch.setattr(signing_keys, "MIN_REFRESH_SECONDS", 0.2)
        wait_until(
            lambda: whoami(broker, issuer.token("ec", scope=ADMIN))[0] == 200, "the new key was fetched"
        )
        assert whoami(broker, issuer.token("rsa", scope=ADMIN))[0] == 401, "the key was withdrawn"


def test_the_issuer_names_its_keys(server: JwksServer, issuer: Issuer) -> None:
    publish_keys(server, issuer)
    server.documents["/realm/.well-known/openid-configuration"] = json.dumps(
        {"issuer": f"{server.url}/realm", "jwks_uri": f"{server.url}/jwks"}
    ).encode()
    config = configured(fetched(server, jwks_uri="", issuer=f"{server.url}/realm/"))

    with InProcessBroker(config=config) as broker:
        assert whoami(broker, issuer.token("ed", scope=ADMIN))[0] == 200


@pytest.mark.parametrize(
    "fault",
    [
        "no authority",
        "redirect",
        "500",
        "no JSON",
        "no JWKS",
        "too large",
        "nothing listens",
        "http in discovery",
    ],
)
def test_keys_that_cannot_be_fetched_safely_let_nobody_in(
    server: JwksServer, issuer: Issuer, fault: str
) -> None:
    publish_keys(server, issuer)
    config = fetched(server)
    if fault == "no authority":
        config = replace(config, ca=None)
    elif fault == "redirect":
        server.documents["/real"] = server.documents["/jwks"]
        server.statuses["/jwks"], server.headers["Location"] = 302, f"{server.url}/real"
    elif fault == "500":
        server.statuses["/jwks"] = 500
    elif fault == "too large":
        server.documents["/jwks"] += b" " * signing_keys.MOST_BYTES
    elif fault == "nothing listens":
        config = replace(config, jwks_uri="https://127.0.0.1:1/jwks")
    elif fault == "http in discovery":
        server.documents["/.well-known/openid-configuration"] = b'{"jwks_uri": "http://127.0.0.1:1/jwks"}'
        config = replace(config, jwks_uri="", issuer=server.url)
    else:
        server.documents["/jwks"] = b"{" if fault == "no JSON" else b"[]"

    with InProcessBroker(config=configured(config)) as broker:
        assert whoami(broker, issuer.token(scope=ADMIN))[0] == 401
        with Connection(broker.url) as connection:
            assert connection.channel().declare()


def test_a_broker_stops_while_keys_are_fetched(server: JwksServer, issuer: Issuer) -> None:
    publish_keys(server, issuer)
    with (
        server.held(),
        InProcessBroker(config=configured(fetched(server))) as broker,
        RawClient(broker.url) as peer,
    ):
        peer.greet()
        peer.send(peer.start_ok(response=f"\0x\0{issuer.token(scope=ALL)}"), 0)
        wait_until(lambda: server.requests == ["/jwks"], "the keys are asked for")
        assert whoami_as_guest(broker) == 200, "others are served meanwhile"
        broker.stop()


def whoami_as_guest(broker: InProcessBroker) -> int:
    assert broker.broker is not None
    return HttpApi(f"http://{broker.broker.management_addresses[0]}").ask("GET", "whoami").status


def test_keys_of_a_file(tmp_path: Path, issuer: Issuer) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(issuer.jwks()))
    config = OAuth2Config(resource_server_id="rabbitmq", jwks_uri=str(path))

    with InProcessBroker(config=configured(config, "oauth2")) as broker:
        assert whoami(broker, issuer.token("ec", scope=ADMIN))[0] == 200


def test_keys_for_other_uses_are_left_out(issuer: Issuer) -> None:
    row = issuer.jwks("rsa")["keys"][0]
    rows = [
        {**row, "kid": "good"},
        {**row, "kid": "for encryption", "use": "enc"},
        {**row, "kid": "wrong algorithm", "alg": "ES256"},
        {**row, "kid": "hmac", "alg": "HS256"},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "secret"},
        {"kty": "RSA", "kid": "no numbers"},
        {"kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": "short"},
        {**row, "kid": 7},
        {**row, "kid": None},
        "no object",
    ]

    assert list(signing_keys.read_jwks({"keys": rows})) == ["good"]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "auth_backends has oauth2; it needs oauth2_resource_server_id"),
        ({"resource_server_id": "x"}, "it needs oauth2_signing_keys, oauth2_jwks_uri or oauth2_issuer"),
        ({"jwks_uri": "http://x/jwks"}, "oauth2_jwks_uri is 'http://x/jwks'; it must begin with https://"),
        ({"issuer": "x"}, "oauth2_issuer is 'x'; it must begin with https://"),
        ({"algorithms": ("HS256",)}, "oauth2_algorithms has 'HS256'"),
        ({"algorithms": ("none",)}, "oauth2_algorithms has 'none'"),
        ({"leeway": -1}, "oauth2_leeway is -1"),
        ({"default_key": "k"}, "oauth2_default_key is 'k'; no key in oauth2_signing_keys has that id"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match="oauth2") as error:
        BrokerConfig(auth_backends=("oauth2",), oauth2=OAuth2Config(**settings))

    assert text in str(error.value)


def test_a_key_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("nonsense")
    config = OAuth2Config(resource_server_id="x", signing_keys={"k": str(tmp_path / "key.pem")})

    with pytest.raises(ValueError, match=r"oauth2_signing_keys: cannot use .*key\.pem as the key 'k'"):
        InProcessBroker(config=configured(config)).start()
