"""Cost of hostile input: time and memory stay in proportion to the bytes that a client sends."""

from __future__ import annotations

import time
import tracemalloc

from tests.support import frames
from tests.support.blocking_client import Connection
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from tests.support.raw_client import RawClient
from warren.broker.model.exchange.topic import TopicTrie
from warren.wire.content import make_header
from warren.wire.methods import frame


def test_many_wildcards_in_a_row_are_matched_without_backtracking() -> None:
    """Following each way to split the key among the wildcards would not end: there are more than 10^70."""
    trie = TopicTrie()
    trie.add(b".".join([b"#"] * 127), "any")
    assert list(trie.match([b".".join([b"a"] * 127)])) == ["any"]


def test_a_body_in_tiny_pieces_takes_its_own_size(inprocess: InProcessBroker) -> None:
    size = 100_000
    with RawClient(inprocess.url) as peer:
        peer.connect().open()
        queue = peer.declare(exclusive=True)
        start = frame(1, "basic.publish", 0, b"", queue.encode(), False, False)
        peer.send_bytes(start + frames.frame(2, 1, make_header(size, b"", 0)))
        pieces = (frames.frame(3, 1, b"") + frames.frame(3, 1, b"ab")) * (size // 2)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            peer.send_bytes(pieces)
            peer.sync()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak - before < 2_000_000


def test_open_sockets_take_no_buffer_each(inprocess: InProcessBroker) -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        peers = []
        for _ in range(50):
            # At once: the broker waits for a handshake ten seconds.
            peers.append(RawClient(inprocess.url))
            peers[-1].greet()
        now, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    for peer in peers:
        peer.abort()
    assert (now - before) / len(peers) < 65536


def test_what_an_exchange_leads_to_is_not_counted_for_each_key(inprocess: InProcessBroker) -> None:
    with Connection(inprocess.url) as connection:
        channel = connection.channel()
        exchange = channel.declare_exchange("wide", "direct")
        queue = channel.declare(exclusive=True)
        channel.confirm()

        def seconds(first: int) -> float:
            began = time.process_time()
            connection.raw.send_bytes(
                b"".join(
                    channel.encoded(f"key-{number % 100}", b"", exchange=exchange) for number in range(2000)
                )
            )
            channel.settled_until(first + 2000)
            return time.process_time() - began

        narrow = min(seconds(0), seconds(2000))
        for number in range(3000):
            channel.bind(queue, exchange, f"other-{number}")
        # A publish that looked at each of the bindings would cost a hundred times as much.
        assert min(seconds(4000), seconds(6000)) < 20 * narrow + 0.5


def test_a_death_costs_the_same_however_many_went_before(inprocess: InProcessBroker) -> None:
    with Connection(inprocess.url) as connection:
        channel = connection.channel()

        def seconds(deaths: int) -> float:
            """Processor time of a message that dies so many times, each time in another queue."""
            queue = last = channel.declare(exclusive=True)
            for _ in range(deaths):
                queue = channel.declare(
                    exclusive=True, x_max_length=0, x_dead_letter_exchange="", x_dead_letter_routing_key=queue
                )
            began = time.process_time()
            channel.publish(queue, b"x")
            wait_until(lambda: channel.ready(last) == 1, "it has died that often")
            return time.process_time() - began

        # Ten times as many deaths cost about ten times as much; if each read all before it, a hundred times.
        few = min(seconds(40), seconds(40))
        assert seconds(400) < 40 * few + 0.5
