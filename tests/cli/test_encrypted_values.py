"""Encrypted values of RabbitMQ's configuration: what rabbitmqctl 4.3.6 has encrypted, and what Warren encrypts."""

from __future__ import annotations

import pytest

from tests.support.standard_input import standard_input
from warren.cli.ctl.encrypted_values import CIPHERS, HASHES
from warren.cli.ctl.main import main
from warren.core.errors import UsageError

CONF_VALUE = "encrypted:ohOmUdo1ffuxkeRXm93OIfYZ7/V61PBsyK+0RqhZZl3ci/fsn1eu5lQJA3E1nlJZ"
BINARY = "C1lpgLpk1bXBLZgsrf4L5k7ira3TOsG45xX9yLNhi6XMeJjeDLgSj6KfiYAhSbi1"
ATOM = "HjBE6HOlojfmANA2au4ji9srcDufaOR/JmmW5XgTmXtLpZHjyorhTtC1O4vPGffk"
WITH_OPTIONS = (
    "Dq0SPxECEfNbG8+rFxWNcKxFJcnbuDQNAUszaeIwjUXfHgKFVNglMKQPidr7w+7NeseoMy45itaR1RXTdkRC4XbNGnrfMH8="
)
OPTIONS = ("--cipher", "aes_128_ctr", "--hash", "sha256", "--iterations", "5")
LIST = "Uvo/LgWAMZ//VxnP1WQI6sFpIeAuKwiD3/ijbsBBXjmIuhqHOg8n/9cLylnEHEc2KWbq6PmOjfavrjfnhWGFAg=="


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["-q", *words]) == 0
    return capsys.readouterr().out.rstrip("\n")


@pytest.mark.parametrize(
    ("words", "term"),
    [
        (("decode", f'{{encrypted,<<"{BINARY}">>}}', "pass"), '<<"guest">>'),
        (("decode", f'<<"{BINARY}">>', "pass"), '<<"guest">>'),
        (("decode", f'"{BINARY}"', "pass"), '<<"guest">>'),
        (("decode", f'{{encrypted,<<"{ATOM}">>}}', "pass", "--iterations", "1"), "guest"),
        (("decode", f'{{encrypted,<<"{LIST}">>}}', "pass"), "[{a,1.5},<<1,2>>,120]"),
        (("decode", WITH_OPTIONS, "pass", *OPTIONS), '{user,"guest",1.5,-3,<<1,2>>}'),
        (("decrypt_conf_value", CONF_VALUE, "pass"), "secret"),
    ],
)
def test_what_rabbitmqctl_has_encrypted_is_decrypted(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], term: str
) -> None:
    assert output(capsys, *words) == term


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("term", ['<<"guest">>', "[]", '"a\\nb"', "{user,'a b',-5,70000000000,[1,[x],\"\"]}"])
def test_what_is_encrypted_is_decrypted(capsys: pytest.CaptureFixture[str], cipher: str, term: str) -> None:
    options = ("--cipher", cipher, "--iterations", "2")
    encrypted = output(capsys, "encode", term, "pass", *options)
    assert output(capsys, "decode", encrypted, "pass", *options) == term.replace('""', "[]")

    conf = output(capsys, "encrypt_conf_value", term, "pass", *options)
    assert conf.startswith("encrypted:")
    assert output(capsys, "decrypt_conf_value", conf, "pass", *options) == term.replace('""', "[]")


@pytest.mark.parametrize("name", HASHES)
def test_each_hash_makes_a_key(capsys: pytest.CaptureFixture[str], name: str) -> None:
    options = ("--hash", name, "--iterations", "1")
    encrypted = output(capsys, "encode", "x", "pass", *options)
    assert output(capsys, "decode", encrypted, "pass", *options) == "x"


def test_value_and_passphrase_come_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", standard_input('<<"guest">>\npass\n'))
    encrypted = output(capsys, "encode")
    monkeypatch.setattr("sys.stdin", standard_input("pass\n"))
    assert output(capsys, "decode", encrypted) == '<<"guest">>'
    monkeypatch.setattr("sys.stdin", standard_input(""))
    with pytest.raises(UsageError, match="standard input has no line for 'Passphrase'"):
        main(["decode", encrypted])


def test_the_announcement_is_rabbitmqctls(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list_hashes"]) == 0
    first, *names = capsys.readouterr().out.splitlines()
    assert first == "Listing supported hash algorithms ..."
    assert "".join(names).replace(" ", "") == f"[{','.join(HASHES)}]"
    assert max(map(len, names)) <= 80


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("encode", "x", "p", "--cipher", "foo"), "the cipher 'foo' is not supported"),
        (("encode", "x", "p", "--hash", "foo"), "the hash 'foo' is not supported"),
        (("encode", "x", "p", "--iterations", "0"), "the number of iterations must be from 1"),
        (("encode", '<<"x"', "p"), "the value is no Erlang term"),
        (("encode", "[" * 100_000, "p"), "the value is no Erlang term"),
        (("encode", "Variable", "p"), "the value is no Erlang term"),
        (("decode", "{x,y,z}", "p"), "the value is no encrypted value"),
        (("decode",), "decode needs VALUE"),
        (("encode", "a", "b", "c"), "encode does not take 'c'"),
    ],
)
def test_wrong_arguments_are_refused(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(UsageError, match=text.replace("[", r"\[")):
        main(words)


@pytest.mark.parametrize("value", [BINARY, BINARY[:-4], BINARY[:8], "no base64!", ""])
def test_a_value_that_cannot_be_decrypted_is_one_line(capsys: pytest.CaptureFixture[str], value: str) -> None:
    assert main(["-q", "decode", value, "wrong"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warren ctl: Failed to decrypt the value.")
    assert "wrong" not in line
