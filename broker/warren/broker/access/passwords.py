"""Password hashes in RabbitMQ's form: a salt of four bytes, then the hash of salt and password.

https://www.rabbitmq.com/docs/passwords. RabbitMQ can import hashes that this broker exports, and the reverse.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from typing import Final

from warren.broker.model.operator_errors import OperationRefused

SHA256: Final = "rabbit_password_hashing_sha256"
ALGORITHMS: Final = {
    SHA256: "sha256",
    "rabbit_password_hashing_sha512": "sha512",
    "rabbit_password_hashing_md5": "md5",
}
"""Name in hashlib of each hash algorithm that RabbitMQ's definitions can name. Old exports contain MD5."""
SALT_BYTES: Final = 4


def hash_password(password: str, algorithm: str = SHA256) -> bytes:
    """Hash a password with a new random salt, and return salt and hash.

    :param algorithm: one of `ALGORITHMS`.
    """
    salt = os.urandom(SALT_BYTES)
    return salt + _digest(salt, password.encode(), algorithm)


def matches(password: bytes, stored: bytes, algorithm: str) -> bool:
    """Return whether a password matches a stored salt and hash; compares in constant time.

    :param stored: salt and hash, as `hash_password` returns them.
    :param algorithm: algorithm of the stored hash, one of `ALGORITHMS`.
    """
    return hmac.compare_digest(_digest(stored[:SALT_BYTES], password, algorithm), stored[SALT_BYTES:])


def to_definitions(stored: bytes) -> str:
    """Encode stored salt and hash as Base64, the form of the field `password_hash` in RabbitMQ's definitions."""
    return base64.b64encode(stored).decode()


def from_definitions(password_hash: str, algorithm: str) -> bytes:
    """Decode the field `password_hash` of RabbitMQ's definitions to salt and hash; empty for a user without a password.

    A hash of another length is accepted, as by RabbitMQ, so that its definitions can be imported; no password matches it.

    :param algorithm: algorithm of the hash, one of `ALGORITHMS`.
    :raises OperationRefused: if the algorithm is unknown, or the field is not Base64.
    """
    if algorithm not in ALGORITHMS:
        raise OperationRefused(
            f"unknown hashing algorithm '{algorithm}'; supported are: {', '.join(ALGORITHMS)}"
        )
    try:
        return base64.b64decode(password_hash, validate=True)
    except ValueError:
        raise OperationRefused(
            f"the password hash is not the base64 form of a 4-byte salt and a hash of {algorithm}"
        ) from None


def _digest(salt: bytes, password: bytes, algorithm: str) -> bytes:
    return hashlib.new(ALGORITHMS[algorithm], salt + password, usedforsecurity=False).digest()
