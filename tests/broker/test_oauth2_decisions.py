"""Each access token is allowed what RabbitMQ 4.3.6 allows it.

The reference was recorded by `python -m tests.conformance.oauth2.decisions HOST PORT KEY`.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.conformance.oauth2.decisions import CLAIMS, REFERENCE, SCOPES, decide_all
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.tokens import Issuer
from warren.broker import BrokerConfig
from warren.broker.access.oauth2.oauth2_config import OAuth2Config


def test_each_token_is_allowed_what_rabbitmq_allows_it(tmp_path: Path) -> None:
    issuer = Issuer()
    oauth2 = OAuth2Config(
        resource_server_id="rabbitmq",
        default_key="rsa",
        signing_keys=issuer.write_keys(tmp_path),
        additional_scopes_key=("roles", "extra.nested"),
        scope_aliases={"developer": "rabbitmq.read:%2F/dev* rabbitmq.write:%2F/dev*"},
        preferred_username_claims=("user_name",),
    )
    config = BrokerConfig(
        auth_backends=("oauth2",), oauth2=oauth2, login_failure_delay=0, handshake_timeout=PATIENCE
    )

    with InProcessBroker(config=config) as broker:
        assert broker.broker is not None
        found = decide_all("127.0.0.1", broker.broker.port, issuer)

    reference = json.loads(REFERENCE.read_text())
    assert len(reference) == len(SCOPES) + len(CLAIMS)
    assert found == reference
