"""Seven kinds of callers may do what they may do in RabbitMQ 4.3.6, except for the differences that stand here.

The reference was recorded by `python -m tests.conformance.http_api.rights URL`.
"""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tests.conformance.http_api.rights import REFERENCE, ask_all
from tests.support.in_process_broker import InProcessBroker
from warren.broker import BrokerConfig

CRASHES = "RabbitMQ answers 500: it looks for the user of a connection that does not exist"
NO_LIST = "RabbitMQ lists no bindings of a virtual host that does not exist; 404 tells why"
NO_GET = "RabbitMQ has this method by mistake: it answers 500"
KNOWN: Final = {
    "GET connections/nope": CRASHES,
    "DELETE connections/nope": CRASHES,
    "GET connections/nope/channels": CRASHES,
    "GET channels/nope": CRASHES,
    "GET exchanges/nope/e/bindings/source": NO_LIST,
    "GET exchanges/nope/e/bindings/destination": NO_LIST,
    "GET queues/nope/q/bindings": NO_LIST,
    "GET bindings/nope/e/e/q/q": NO_LIST,
    "GET bindings/nope/e/amq.default/q/q": NO_LIST,
    "GET bindings/nope/e/amq.default/e/e": NO_LIST,
    "GET bindings/nope/e/e/e/amq.default": NO_LIST,
    "GET vhosts/own/deletion/protection": NO_GET,
    "GET vhosts/other/deletion/protection": NO_GET,
    "GET vhosts/nope/deletion/protection": NO_GET,
    "DELETE queues/other/nope": "an administrator without permissions is refused before the queue is looked for",
}
"""Requests whose answers differ, with the reason."""


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, list[Any]]]:
    config = BrokerConfig(management_port=0, login_failure_delay=0, handshake_timeout=120)
    with InProcessBroker(config=config) as broker:
        assert broker.broker is not None
        return ask_all(f"http://{broker.broker.management_addresses[0]}")


def test_each_caller_may_do_what_rabbitmq_lets_it_do(answers: dict[str, dict[str, list[Any]]]) -> None:
    reference = json.loads(REFERENCE.read_text())
    assert len(reference) == len(answers) > 800

    different = {
        request: [
            f"{caller}: RabbitMQ {wanted[caller]}, here {answers[request][caller]}"
            for caller in wanted
            if wanted[caller] != answers[request][caller]
        ]
        for request, wanted in reference.items()
        if wanted != answers[request]
    }

    unknown = {request: texts for request, texts in different.items() if request not in KNOWN}
    assert not unknown, "\n".join(
        f"{request}\n    " + "\n    ".join(texts) for request, texts in unknown.items()
    )
    assert not {request for request in KNOWN if request not in different}, "these differ no more"
