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

CRASHES: Final = "RabbitMQ answers 500: it looks for the user of a connection that does not exist"
NO_LIST: Final = "RabbitMQ lists no bindings of a virtual host that does not exist; 404 tells why"
NO_GET: Final = "RabbitMQ has this method by mistake: it answers 500"
NO_HEAD: Final = (
    "RabbitMQ has forgotten this method, which each resource with GET has (RFC 9110, section 9.1)"
)
KNOWN: Final = {
    **{
        f"{method} {path}": CRASHES
        for path in ("connections/nope", "connections/nope/channels", "channels/nope")
        for method in ("GET", "HEAD")
    },
    "DELETE connections/nope": CRASHES,
    **{
        f"{method} {path}": NO_LIST
        for path in (
            "exchanges/nope/e/bindings/source",
            "exchanges/nope/e/bindings/destination",
            "queues/nope/q/bindings",
            "bindings/nope/e/e/q/q",
            "bindings/nope/e/amq.default/q/q",
            "bindings/nope/e/amq.default/e/e",
            "bindings/nope/e/e/e/amq.default",
        )
        for method in ("GET", "HEAD")
    },
    **{f"GET vhosts/{vhost}/deletion/protection": NO_GET for vhost in ("own", "other", "nope")},
    **{f"HEAD vhost-limits{vhost}": NO_HEAD for vhost in ("", "/own", "/other", "/nope")},
    **{f"HEAD user-limits{user}": NO_HEAD for user in ("", "/k-{tag}", "/guest")},
    "HEAD auth/hash_password/secret": NO_HEAD,
    "DELETE queues/other/nope": "an administrator without permissions is refused before the queue is looked for",
}
"""Requests whose answers differ, with the reason."""


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, list[Any]]]:
    config = BrokerConfig(management_port=0, login_failure_delay=0, handshake_timeout=120)
    with InProcessBroker(config=config) as broker:
        assert broker.broker is not None
        return ask_all(f"http://{broker.broker.management_addresses[0]}")


def test_each_caller_may_do_what_rabbitmq_lets_it_do(answers: dict[str, dict[str, list[Any]]]) -> None:
    reference = json.loads(REFERENCE.read_text())
    assert len(reference) == len(answers) > 1500

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
