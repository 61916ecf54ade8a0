"""Logging in: SASL PLAIN (RFC 4616), and the user that may come from this machine only."""

from __future__ import annotations

import pytest

from warren.broker.session.access import Access, is_loopback

ACCESS = Access({"guest": "guest", "\u00e4nn": "p\u00e4ss"})


@pytest.mark.parametrize(
    ("response", "user"),
    [
        (b"\0guest\0guest", b"guest"),
        ("\0\u00e4nn\0p\u00e4ss".encode(), "\u00e4nn".encode()),
        (b"\0guest\0Guest", None),
        (b"\0guest\0guest2", None),
        (b"\0guest\0", None),
        (b"\0nobody\0guest", None),
        (b"\0\0", None),
        (b"guest\0guest\0guest", None),
        (b"\0guest\0guest\0", None),
        (b"guest\0guest", None),
        (b"", None),
    ],
)
def test_plain(response: bytes, user: bytes | None) -> None:
    assert ACCESS.plain(response, "127.0.0.1") == user


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
def test_guest_comes_from_this_machine_only(peer: str, local: bool) -> None:
    """https://www.rabbitmq.com/docs/access-control#loopback-users"""
    assert is_loopback(peer) == local
    assert (ACCESS.plain(b"\0guest\0guest", peer) == b"guest") == local
    assert ACCESS.plain("\0\u00e4nn\0p\u00e4ss".encode(), peer) is not None


def test_passwords_are_not_shown() -> None:
    assert "p\u00e4ss" not in repr(ACCESS)
