"""Encrypted values of RabbitMQ's configuration: the verbs encode, decode, encrypt_conf_value and decrypt_conf_value.

The algorithms are those of RabbitMQ (`credentials_obfuscation_pbe`): a key by PBKDF2, AES, and Base64 of salt,
initialization vector and ciphertext. The verbs need no broker. https://www.rabbitmq.com/docs/configure#configuration-encryption
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from typing import Any, Final

from warren.cli.ctl.erlang_format import decode_term, encode_term, parse_term
from warren.cli.standard_streams import read_line
from warren.core.command_output import input_is_terminal
from warren.core.control_client import ControlError
from warren.core.erlang_terms import Atom, Term, format_term
from warren.core.errors import ExitStatus, UsageError, missing_extra_error

SALT_BYTES: Final = 16
BLOCK_BYTES: Final = 16
"""Bytes of AES' initialization vector, and of a block."""
CIPHERS: Final = {
    f"aes_{bits}_{mode}": (bits // 8, mode) for mode in ("cbc", "ctr") for bits in (256, 192, 128)
}
"""Bytes of the key and mode of each cipher, by RabbitMQ's name."""
HASHES: Final = {
    "sha512": "sha512",
    "sha384": "sha384",
    "sha256": "sha256",
    "sha224": "sha224",
    "sha": "sha1",
    "sha512_256": "sha512_256",
    "sha512_224": "sha512_224",
    "sha3_512": "sha3_512",
    "sha3_384": "sha3_384",
    "sha3_256": "sha3_256",
    "sha3_224": "sha3_224",
    "md5": "md5",
}
"""Name in OpenSSL of each hash function, by RabbitMQ's name."""
DEFAULTS: Final = {"cipher": "aes_128_cbc", "hash": "sha256", "iterations": 1}
"""Parameters of rabbitmqctl 4.3."""
MOST_ITERATIONS: Final = 2**31 - 1
PREFIX: Final = "encrypted:"
"""Beginning of an encrypted value in rabbitmq.conf."""
DECRYPTION_FAILED: Final = (
    "Failed to decrypt the value. Things to check: is the passphrase correct? Are the cipher and hash algorithms the same "
    "as those used for encryption?"
)


class Parameters:
    """Parameters of the encryption, from the options of a verb.

    :raises UsageError: if one is not supported.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        given = {**DEFAULTS, **options}
        if given["cipher"] not in CIPHERS:
            raise UsageError(
                f"the cipher {given['cipher']!r} is not supported; `warren ctl list_ciphers` lists them"
            )
        if given["hash"] not in HASHES:
            raise UsageError(
                f"the hash {given['hash']!r} is not supported; `warren ctl list_hashes` lists them"
            )
        self.iterations = int(given["iterations"])
        if not 0 < self.iterations <= MOST_ITERATIONS:
            raise UsageError(f"the number of iterations must be from 1 to {MOST_ITERATIONS}")
        self.key_bytes, self.mode = CIPHERS[given["cipher"]]
        self.hash = HASHES[given["hash"]]

    def cipher(self, passphrase: str, salt: bytes, vector: bytes) -> Any:
        """Return the cipher with the key of a passphrase."""
        try:
            from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        except ImportError:
            raise missing_extra_error("crypto", "encryption of values") from None
        key = hashlib.pbkdf2_hmac(self.hash, passphrase.encode(), salt, self.iterations, self.key_bytes)
        return Cipher(algorithms.AES(key), modes.CBC(vector) if self.mode == "cbc" else modes.CTR(vector))


def _wrapped(names: dict[str, Any]) -> str:
    """Return a list of atoms in lines, as rabbitmqctl prints it."""
    lines = [""]
    for index, name in enumerate(names):
        word = name + ("," if index < len(names) - 1 else "")
        if len(lines[-1]) + len(word) > 78:
            lines.append("")
        lines[-1] += word
    return "[" + "\n ".join(lines) + "]"


def perform_locally(verb: str, arguments: dict[str, Any]) -> str:
    """Perform one of `verbs.LOCAL_VERBS` and return what it prints.

    :raises UsageError: if an argument is wrong.
    :raises ControlError: if the value cannot be decrypted.
    """
    if verb == "list_ciphers":
        return _wrapped(CIPHERS)
    if verb == "list_hashes":
        return _wrapped(HASHES)
    parameters = Parameters({name: arguments[name] for name in DEFAULTS if name in arguments})
    value = arguments["value"] if "value" in arguments else _read_line("Value to encode: ")
    passphrase = arguments["passphrase"] if "passphrase" in arguments else _read_line("Passphrase: ")
    if verb in ("encode", "encrypt_conf_value"):
        text = _encrypt(_parsed(value), passphrase, parameters)
        return f'{{encrypted,<<"{text}">>}}' if verb == "encode" else PREFIX + text
    # rabbitmqctl wants the value as a term; what it has printed itself is taken as well.
    text = value.strip().removeprefix(PREFIX)
    if text[:1] in ("{", "<", '"'):
        text = _encrypted_text(_parsed(value))
    return format_term(_decrypt(text, passphrase, parameters))


def _read_line(prompt: str) -> str:
    """Read a line from the terminal without echo, or from standard input.

    :raises UsageError: if there is none.
    """
    if input_is_terminal():
        from getpass import getpass

        return getpass(prompt)
    name = prompt.rstrip(": ")
    line = read_line(name)
    if line is None:
        raise UsageError(f"standard input has no line for {name!r}; name it as an argument")
    return line


def _parsed(value: str) -> Term:
    try:
        return parse_term(value)
    except (ValueError, RecursionError):
        raise UsageError('the value is no Erlang term; write a string as "..." or <<"...">>') from None


def _encrypted_text(term: Term) -> str:
    """Return the Base64 text of a term such as `{encrypted,<<"...">>}`, a binary, or a string."""
    if isinstance(term, tuple) and len(term) == 2 and term[0] == Atom("encrypted"):
        term = term[1]
    if isinstance(term, str):
        return str(term).removeprefix(PREFIX)
    raise UsageError('the value is no encrypted value: {encrypted,<<"...">>} or encrypted:...')


def _encrypt(term: Term, passphrase: str, parameters: Parameters) -> str:
    salt, vector = os.urandom(SALT_BYTES), os.urandom(BLOCK_BYTES)
    encryptor = parameters.cipher(passphrase, salt, vector).encryptor()
    content = encode_term(term)
    # A stream cipher has blocks of one byte, and RabbitMQ pads always.
    block = BLOCK_BYTES if parameters.mode == "cbc" else 1
    missing = block - len(content) % block
    content += bytes([missing]) * missing
    return base64.b64encode(salt + vector + encryptor.update(content) + encryptor.finalize()).decode()


def _decrypt(text: str, passphrase: str, parameters: Parameters) -> Term:
    """Return the decrypted term.

    :raises ControlError: if text, passphrase or parameters are wrong.
    """
    try:
        content = base64.b64decode(text, validate=True)
        salt, vector = content[:SALT_BYTES], content[SALT_BYTES : SALT_BYTES + BLOCK_BYTES]
        decryptor = parameters.cipher(passphrase, salt, vector).decryptor()
        plain = decryptor.update(content[SALT_BYTES + BLOCK_BYTES :]) + decryptor.finalize()
        return decode_term(plain[: -plain[-1]])
    except (binascii.Error, ValueError, IndexError, RecursionError):
        raise ControlError(DECRYPTION_FAILED, ExitStatus.FAILED) from None
