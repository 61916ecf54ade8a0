"""Password hashes in RabbitMQ's form: a salt of four bytes, then the hash of salt and password.

https://www.rabbitmq.com/docs/passwords. What is exported here is imported there, and the reverse.
"""

from __future__ import annotations

import base64
import binascii
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
"""By the names that definitions give them. MD5 is read, because old exports hold it."""
SALT_BYTES: Final = 4


def salted(password: str, algorithm: str = SHA256) -> bytes:
    """Salt and hash of a password."""
    salt = os.urandom(SALT_BYTES)
    return salt + _digest(salt, password.encode(), algorithm)


def matches(password: bytes, stored: bytes, algorithm: str) -> bool:
    """Whether this is the password that was stored. It takes as long for a wrong one."""
    return hmac.compare_digest(_digest(stored[:SALT_BYTES], password, algorithm), stored[SALT_BYTES:])


def exported(stored: bytes) -> str:
    """The `password_hash` of definitions."""
    return base64.b64encode(stored).decode()


def imported(password_hash: str, algorithm: str) -> bytes:
    """What a `password_hash` of definitions stands for; the empty one, for a user without a password.

    :raises OperationRefused: if it is no hash of that algorithm.
    """
    if algorithm not in ALGORITHMS:
        raise OperationRefused(f"no hashing algorithm '{algorithm}'; there are: {', '.join(ALGORITHMS)}")
    try:
        stored = base64.b64decode(password_hash, validate=True)
    except binascii.Error:
        stored = b"?"
    if stored and len(stored) != SALT_BYTES + hashlib.new(ALGORITHMS[algorithm]).digest_size:
        raise OperationRefused(f"the password hash is no base64 of a 4-byte salt and a hash of {algorithm}")
    return stored


def _digest(salt: bytes, password: bytes, algorithm: str) -> bytes:
    return hashlib.new(ALGORITHMS[algorithm], salt + password, usedforsecurity=False).digest()
