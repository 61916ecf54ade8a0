"""Consumer with automatic acknowledgement and without the SDK that captures events in the published format.

`python -m tests.spark.auto_ack_consumer URL QUEUE STREAM COUNT hold|end`: it handles COUNT messages and prints each
one's id. Then it ends, or receives one more and waits to be killed. Its events are in the stream before it continues.
"""

from __future__ import annotations

import signal
import sys
import time
from typing import Any

from tests.spark.captured_events import Source, published
from tests.support.pika_connection import pika_connection


def main(url: str, queue: str, stream: str, count: int, then: str) -> None:
    source = Source(app="automatic")
    with pika_connection(url) as connection:
        consuming, publishing = connection.channel(), connection.channel()
        publishing.confirm_delivery()

        def record(event: str, message_id: str = "", **known: Any) -> None:
            source.record(event, time.time_ns() // 1000, message_id, **known)
            source.flush()
            publishing.basic_publish("", stream, *published(source.batches[-1]))

        record("started")
        for number, (method, properties, _) in enumerate(consuming.consume(queue, auto_ack=True), 1):
            subscription = {"queue": queue, "consumer": method.consumer_tag}
            address = {"exchange": method.exchange, "routing_key": method.routing_key}
            record("delivered", properties.message_id, **subscription, **address, no_ack=True)
            if number > count:
                print("holding", properties.message_id, flush=True)
                signal.pause()
            record("acked", properties.message_id, **subscription)
            print("handled", properties.message_id, flush=True)
            if number == count and then == "end":
                break
        record("stopped")
    print("finished", flush=True)


if __name__ == "__main__":
    url, queue, stream, count, then = sys.argv[1:]
    main(url, queue, stream, int(count), then)
