"""SASL authentication and password hashes (https://www.rabbitmq.com/docs/access-control)."""

from __future__ import annotations

import pytest

from warren.broker import VirtualClock
from warren.broker.access.access_control import Access
from warren.broker.access.login_chain import InternalBackend, LoginChain, LoginRefused
from warren.broker.access.passwords import ALGORITHMS, from_definitions, hash_password, to_definitions
from warren.broker.access.sasl_authentication import (
    LoginSettings,
    PeerIdentity,
    authenticate,
    is_loopback,
    offered_mechanisms,
)
from warren.broker.model.operator_errors import OperationRefused
from warren.broker.model.vhost.vhost_registry import VirtualHosts
from warren.wire import field_tables
from warren.wire.reply_codes import AmqpError


def logins(access: Access) -> LoginChain:
    return LoginChain(InternalBackend(access))


ANN = "\u00e4nn"
HERE = PeerIdentity("127.0.0.1")


@pytest.fixture
def access() -> Access:
    access = Access(VirtualHosts(VirtualClock(), None, None))
    access.users.add("guest", "guest")
    access.users.add(ANN, "p\u00e4ss")
    access.users.add("nopass")
    return access


def user(
    access: Access, mechanism: str, response: bytes, peer: PeerIdentity = HERE, **login: object
) -> str | None:
    try:
        return authenticate(logins(access), LoginSettings(**login), peer, mechanism, response).user.name  # type: ignore[arg-type]
    except LoginRefused:
        return None


@pytest.mark.parametrize(
    ("response", "name"),
    [
        (b"\0guest\0guest", "guest"),
        (f"\0{ANN}\0p\u00e4ss".encode(), ANN),
        (b"\0guest\0Guest", None),
        (b"\0guest\0guest2", None),
        (b"\0guest\0", None),
        (b"\0nobody\0guest", None),
        (b"\0nopass\0", None),
        (b"\0nopass\0nopass", None),
        (b"\0\0", None),
        (b"guest\0guest\0guest", None),
        (b"\0guest\0guest\0", None),
        (b"guest\0guest", None),
        (b"\0gu\xffest\0guest", None),
        (b"", None),
    ],
)
def test_plain(access: Access, response: bytes, name: str | None) -> None:
    assert user(access, "PLAIN", response) == name


def test_amqplain(access: Access) -> None:
    assert user(access, "AMQPLAIN", field_tables.encode({"LOGIN": ANN, "PASSWORD": "p\u00e4ss"})) == ANN
    assert user(access, "AMQPLAIN", field_tables.encode({"LOGIN": ANN, "PASSWORD": "pass"})) is None
    for wrong in ({"LOGIN": "guest"}, {"LOGIN": "guest", "PASSWORD": 1}):
        with pytest.raises(AmqpError, match="LOGIN or PASSWORD") as caught:
            user(access, "AMQPLAIN", field_tables.encode(wrong))  # type: ignore[arg-type]
        assert "guest" not in str(caught.value)
    with pytest.raises(AmqpError):
        user(access, "AMQPLAIN", b"\x05LOGIN")


def test_external_logs_in_the_user_of_the_certificate(access: Access) -> None:
    mechanisms = ("PLAIN", "EXTERNAL")
    assert (
        user(access, "EXTERNAL", b"", PeerIdentity("10.0.0.1", "nopass"), mechanisms=mechanisms) == "nopass"
    )
    assert user(access, "EXTERNAL", b"", PeerIdentity("10.0.0.1", "guest"), mechanisms=mechanisms) is None
    assert user(access, "EXTERNAL", b"", PeerIdentity("10.0.0.1", "stranger"), mechanisms=mechanisms) is None
    assert user(access, "EXTERNAL", b"", PeerIdentity("10.0.0.1", ""), mechanisms=mechanisms) is None
    with pytest.raises(AmqpError, match="invalid authentication mechanism 'EXTERNAL'"):
        user(access, "EXTERNAL", b"", HERE, mechanisms=mechanisms)


def test_anonymous_logs_in_the_configured_user(access: Access) -> None:
    login = LoginSettings(("PLAIN", "ANONYMOUS"), anonymous_user="nopass")
    assert offered_mechanisms(login, HERE) == ("PLAIN", "ANONYMOUS")
    assert authenticate(logins(access), login, HERE, "ANONYMOUS", b"me").user.name == "nopass"
    assert offered_mechanisms(LoginSettings(("PLAIN", "ANONYMOUS")), HERE) == ("PLAIN",)
    with pytest.raises(AmqpError, match="invalid authentication mechanism 'ANONYMOUS'"):
        user(access, "ANONYMOUS", b"")
    with pytest.raises(AmqpError, match="unknown authentication mechanism 'NOPE'"):
        user(access, "NOPE", b"")


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("0.0.0.0", False),
        ("", False),
        ("localhost", False),
    ],
)
def test_guest_may_connect_from_loopback_addresses_only(access: Access, peer: str, local: bool) -> None:
    """https://www.rabbitmq.com/docs/access-control#loopback-users"""
    assert is_loopback(peer) == local
    assert (user(access, "PLAIN", b"\0guest\0guest", PeerIdentity(peer)) == "guest") == local
    assert user(access, "PLAIN", f"\0{ANN}\0p\u00e4ss".encode(), PeerIdentity(peer)) == ANN
    assert user(access, "PLAIN", b"\0guest\0guest", PeerIdentity(peer), loopback_users=()) == "guest"


def test_passwords_do_not_appear_in_representations(access: Access) -> None:
    assert "p\u00e4ss" not in repr(access.users.all())
    stored = access.users.get(ANN).password
    assert repr(stored) not in repr(access.users.all())


# The first is the documentation's own example (https://www.rabbitmq.com/docs/passwords#this-is-the-algorithm).
HASHES = {
    "rabbit_password_hashing_sha256": ("test12", "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"),
}


def test_password_hashes_of_rabbitmq_are_accepted(access: Access) -> None:
    for algorithm, (password, password_hash) in HASHES.items():
        access.users.add(algorithm, password_hash=password_hash, algorithm=algorithm)
        assert access.users.authenticate(algorithm, password.encode()) is not None
        assert access.users.authenticate(algorithm, b"x" + password.encode()) is None
        assert to_definitions(access.users.get(algorithm).password) == password_hash


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_hashes_with_a_new_salt_each_time(access: Access, algorithm: str) -> None:
    assert hash_password("secret", algorithm) != hash_password("secret", algorithm)
    access.users.set_password_hash("guest", to_definitions(hash_password("secret", algorithm)), algorithm)
    assert access.users.authenticate("guest", b"secret") is not None
    assert access.users.authenticate("guest", b"guest") is None


def test_a_password_hash_of_another_length_matches_no_password(access: Access) -> None:
    for password_hash, algorithm in (
        ("AAAA", "rabbit_password_hashing_sha256"),
        ("AAAAAA==", "rabbit_password_hashing_sha256"),
        ("5f4dcc3b5aa765d61d8327deb882cf99", "rabbit_password_hashing_sha256"),
        (to_definitions(hash_password("x")), "rabbit_password_hashing_md5"),
    ):
        access.users.set_password_hash("guest", password_hash, algorithm)
        assert to_definitions(access.users.get("guest").password) == password_hash
        for password in (b"", b"x", b"password", password_hash.encode()):
            assert access.users.authenticate("guest", password) is None


def test_an_invalid_password_hash_is_refused() -> None:
    for password_hash, algorithm in (
        ("abc", "rabbit_password_hashing_sha256"),
        ("???", "rabbit_password_hashing_sha256"),
        (to_definitions(hash_password("x")), "crypt"),
    ):
        with pytest.raises(OperationRefused):
            from_definitions(password_hash, algorithm)
    assert from_definitions("", "rabbit_password_hashing_sha256") == b""
