"""Text on standard input and output, and in files: UTF-8 in every locale."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.standard_input import standard_input
from warren.cli.ctl import main as ctl
from warren.cli.ctl.encrypted_values import perform_locally
from warren.cli.definitions import read_file
from warren.core.command_output import write_document
from warren.core.control_client import ControlError
from warren.core.errors import ExitStatus, UsageError

DEFINITIONS: dict[str, Any] = {"queues": [{"name": "größe", "vhost": "/"}]}
WESTERN = "cp1252"


@pytest.mark.parametrize("locale", ["utf-8", WESTERN, "ascii"])
def test_definitions_on_standard_input_are_utf8(monkeypatch: pytest.MonkeyPatch, locale: str) -> None:
    text = json.dumps(DEFINITIONS, ensure_ascii=False)
    monkeypatch.setattr("sys.stdin", standard_input(text, locale))
    assert read_file("-") == DEFINITIONS


def test_definitions_that_are_not_utf8_are_refused_with_their_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    content = json.dumps(DEFINITIONS, ensure_ascii=False, indent=1).encode(WESTERN)
    file = tmp_path / "definitions.json"
    file.write_bytes(content)
    monkeypatch.setattr("sys.stdin", standard_input(content, WESTERN))
    for name in ("-", str(file)):
        with pytest.raises(ControlError) as caught:
            read_file(name)
        assert caught.value.status == ExitStatus.USAGE
        assert str(caught.value) == f"{name} is not UTF-8 (line 4, byte {content.index(0xF6) + 1})"


def test_a_password_on_standard_input_is_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", standard_input("pä€\r\nsecond\n\n", WESTERN))
    assert [ctl.read_password() for _ in range(4)] == ["pä€", "second", "", ""]
    monkeypatch.setattr("sys.stdin", standard_input("ä\n".encode(WESTERN), WESTERN))
    with pytest.raises(UsageError, match=r"^the password on standard input is not UTF-8 \(byte 1\)$"):
        ctl.read_password()


def test_a_value_to_encrypt_on_standard_input_is_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"iterations": "1"}
    monkeypatch.setattr("sys.stdin", standard_input('"ö"\npäss\n', WESTERN))
    encrypted = perform_locally("encode", dict(options))
    assert perform_locally("decode", {"value": encrypted, "passphrase": "päss", **options}) == '"ö"'


def test_a_document_on_standard_output_is_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding=WESTERN))
    document = {"größe": "→", "half": "\ud83d"}
    write_document(json.dumps(document, ensure_ascii=False))
    assert json.loads(written.getvalue().decode()) == document


@pytest.mark.processes
def test_configuration_files_are_utf8_in_a_locale_without_it(tmp_path: Path) -> None:
    toml, conf = tmp_path / "warren.toml", tmp_path / "rabbitmq.conf"
    toml.write_text('default_vhost = "größe"\n', encoding="utf-8")
    conf.write_text("# Größe\ndefault_vhost = größe\n", encoding="utf-8")
    program = (
        "import sys; from pathlib import Path\n"
        "from warren.broker.configuration.toml_file import read_toml\n"
        "from warren.broker.configuration.rabbitmq_conf import read_rabbitmq_conf\n"
        "print(ascii(read_toml(Path(sys.argv[1]))['default_vhost'].value))\n"
        "print(ascii(read_rabbitmq_conf(Path(sys.argv[2]), {})[0]['default_vhost'].value))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, toml, conf],
        env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == [ascii("größe")] * 2, done.stderr
