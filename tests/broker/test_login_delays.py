"""Delays of refused logins: a refusal is sent later, and later still with each further one of the same address."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pamqp.common import FieldTable

from tests.broker.conftest import pass_time, stop_time
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.polling import wait_until
from tests.support.raw_client import CAPABILITIES, RawClient
from warren.broker import BrokerConfig
from warren.broker.connection.login_delays import FORGET_SECONDS, MOST_DELAY, MOST_NETWORKS, LoginDelays


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    """Run a broker that answers refused logins after a second, whose loop's time a test moves."""
    config = BrokerConfig(handshake_timeout=PATIENCE, login_failure_delay=1)
    with InProcessBroker(config=config) as broker:
        stop_time(broker)
        yield broker


def log_in_wrongly(
    broker: InProcessBroker, user: str, logins: int, properties: FieldTable = CAPABILITIES
) -> RawClient:
    """Send a wrong login, and wait until the broker has judged it; `logins` are waiting for an answer then."""
    peer = RawClient(broker.url)
    peer.greet()
    peer.send(peer.start_ok(response=f"\0{user}\0wrong", properties=properties), 0)
    wait_until(
        lambda: sum(each.reads_paused != 0 for each in broker.connections()) == logins,
        "the broker has read the login",
    )
    return peer


@pytest.mark.parametrize("user", ["guest", "nobody"])
def test_a_refused_login_is_answered_later(broker: InProcessBroker, user: str) -> None:
    with log_in_wrongly(broker, user, 1) as peer:
        pass_time(broker, 0.9)
        assert not peer.has_input()
        pass_time(broker, 0.2)
        assert peer.refusal(0).code == 403
        assert peer.at_end()


def test_further_refusals_of_an_address_come_later_and_others_are_served(broker: InProcessBroker) -> None:
    with log_in_wrongly(broker, "guest", 1) as first, log_in_wrongly(broker, "nobody", 2) as second:
        pass_time(broker, 1.1)
        assert first.refusal(0).code == 403
        with RawClient(broker.url) as peer:
            # A right login is not delayed.
            peer.connect()
        assert not second.has_input()
        pass_time(broker, 1)
        assert second.refusal(0).code == 403


def test_a_client_without_the_capability_is_disconnected_later(broker: InProcessBroker) -> None:
    with log_in_wrongly(broker, "guest", 1, properties={}) as peer:
        pass_time(broker, 0.9)
        assert not peer.has_input(0.2)
        pass_time(broker, 0.2)
        assert peer.at_end()


def test_a_client_that_leaves_before_the_refusal_is_forgotten(broker: InProcessBroker) -> None:
    log_in_wrongly(broker, "guest", 1).abort()
    pass_time(broker, 1.1)
    assert broker.broker is not None
    connections = broker.broker._running.connections
    wait_until(lambda: not connections, "the connection is gone")


def test_the_delay_grows_and_is_forgotten() -> None:
    now = 0.0
    delays = LoginDelays(1, lambda: now)
    assert [delays.next_delay("10.0.0.1") for _ in range(5)] == [1, 2, MOST_DELAY, MOST_DELAY, MOST_DELAY]
    assert delays.next_delay("10.0.0.2") == 1
    # One host may choose from the addresses of a network of IPv6.
    assert [delays.next_delay(f"2001:db8::{number}") for number in (1, 2)] == [1, 2]
    assert [delays.next_delay(f"::ffff:10.0.0.{number}") for number in (3, 4)] == [1, 1]
    now = FORGET_SECONDS + 1
    assert delays.next_delay("10.0.0.1") == 1


def test_a_bounded_number_of_addresses_is_remembered() -> None:
    delays = LoginDelays(1, lambda: 0.0)
    for number in range(MOST_NETWORKS + 1):
        assert delays.next_delay(f"{number}") == 1
    assert len(delays._refused) == MOST_NETWORKS
    assert delays.next_delay("1") == 2
    assert delays.next_delay("0") == 1
