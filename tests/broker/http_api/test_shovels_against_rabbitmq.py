"""Every answer about shovels is RabbitMQ 4.3.6's, except for the differences that stand here with their reason.

The reference was recorded by `python -m tests.conformance.http_api.answers URL shovels`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.conformance.http_api.answers import SHOVEL_REFERENCE, ask_all
from tests.conformance.http_api.shovel_requests import NAME, SHOVEL_ASKS, VALIDATED
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.polling import wait_until
from warren.broker import BrokerConfig
from warren.broker.shovel.definition import definition_errors

REFERENCE: Final[list[dict[str, Any]]] = json.loads(SHOVEL_REFERENCE.read_text())

KNOWN_DEFINITIONS: Final = {
    '"src-uri": "amqp:///"': "an empty path means the virtual host `/`, as in all URLs of Warren",
    '"src-uri": "amqp://h:x"': "a stack trace of Erlang",
    '"src-uri": "amqps://?verify=verify_peer"': "an internal record of Erlang",
    '-queue-args": {"x-max-length": null}': "RabbitMQ names neither key nor argument",
    '"x-stream-offset": true': "RabbitMQ accepts it, and then fails to consume",
}
"""Parts of requests with definitions whose answers differ, with the reason."""


def _request(answer: dict[str, Any]) -> str:
    return re.sub("^[0-9]+: ", "", answer["request"])


@pytest.mark.parametrize("number", range(len(VALIDATED)))
def test_a_definition_has_the_errors_that_rabbitmq_finds(number: int) -> None:
    wanted = REFERENCE[number]
    assert wanted["request"].startswith(f"{number}: PUT parameters/shovel")
    definition = VALIDATED[number].body["value"]

    errors = definition_errors(NAME, definition, "guest", lambda vhost: vhost == "/")

    found = "Validation failed\n\n" + "".join(f"{error}\n" for error in errors) if errors else None
    expected = (wanted["body"] or {}).get("reason")
    if wanted["status"] == 500:
        assert errors
    elif any(part in wanted["request"] for part in KNOWN_DEFINITIONS):
        assert found != expected
    else:
        assert found == expected


@pytest.fixture(scope="module")
def answers() -> Iterator[list[dict[str, Any]]]:
    config = BrokerConfig(management_port=0, login_failure_delay=0, handshake_timeout=PATIENCE)
    with InProcessBroker(config=config) as broker:
        assert broker.broker is not None
        management = broker.broker._management
        assert management is not None

        def states() -> list[str]:
            return [shovel.state.value for shovel in management.shovels.all()]

        def settle() -> None:
            wait_until(lambda: "starting" not in broker.call(states), "all shovels have connected or failed")

        yield ask_all(f"http://{broker.broker.management_addresses[0]}", SHOVEL_ASKS, settle)


def test_each_answer_is_rabbitmqs(answers: list[dict[str, Any]]) -> None:
    reference = [
        answer for answer in REFERENCE[len(VALIDATED) :] if f"shovel/%2f/{NAME}" not in answer["request"]
    ]
    found = [answer for answer in answers if f"shovel/%2f/{NAME}" not in answer["request"]]
    assert [_request(answer) for answer in found] == [_request(answer) for answer in reference]
    assert len(found) > 45

    different = {
        _request(wanted): (wanted, answer)
        for wanted, answer in zip(reference, found, strict=True)
        if (wanted["status"], wanted["body"]) != (answer["status"], answer["body"])
    }

    assert different == {}
