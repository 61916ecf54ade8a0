"""The compiled build: mypyc turns the broker's hot path into C extensions.

Everything else stands in pyproject.toml. `WARREN_COMPILE=1` demands the extensions, `0` leaves them out;
without it they are built if mypy and a C compiler are there. A wheel without them works the same, slower.
"""

import os
import shutil
import sys

from setuptools import setup

COMPILED = [
    "wire/warren/wire/content.py",
    "broker/warren/broker/model/message.py",
    "broker/warren/broker/model/backing.py",
    "broker/warren/broker/model/priority.py",
    "broker/warren/broker/model/due.py",
    "broker/warren/broker/model/delta.py",
    "broker/warren/broker/model/shelf.py",
    "broker/warren/broker/model/memory.py",
    "broker/warren/broker/model/unacked.py",
    "broker/warren/broker/model/expiry.py",
    "broker/warren/broker/model/exchange.py",
    "broker/warren/broker/model/topic.py",
    "broker/warren/broker/model/stored.py",
    "broker/warren/broker/model/round.py",
    "broker/warren/broker/model/consumer.py",
    "broker/warren/broker/model/capture.py",
    "broker/warren/broker/model/queue.py",
    "broker/warren/broker/model/stream_entry.py",
    "broker/warren/broker/model/stream_reader.py",
    "broker/warren/broker/model/stream_tail.py",
    "broker/warren/broker/model/stream.py",
    "broker/warren/broker/model/vhost.py",
    "broker/warren/broker/session/channel.py",
    "broker/warren/broker/session/publishing.py",
    "broker/warren/broker/session/confirms.py",
    "broker/warren/broker/session/incoming.py",
    "broker/warren/broker/session/subscription.py",
    "broker/warren/broker/session/transaction.py",
    "broker/warren/broker/session/connection.py",
    "broker/warren/broker/session/back_pressure.py",
    "broker/warren/broker/session/node.py",
    "broker/warren/broker/session/sockets.py",
    "broker/warren/broker/store/fetch.py",
    "broker/warren/broker/store/index.py",
    "broker/warren/broker/store/indexes.py",
    "broker/warren/broker/store/indexing.py",
    "broker/warren/broker/store/log.py",
    "broker/warren/broker/store/lookup.py",
    "broker/warren/broker/store/queue_log.py",
    "broker/warren/broker/store/reader.py",
    "broker/warren/broker/store/record.py",
    "broker/warren/broker/store/recovery.py",
    "broker/warren/broker/store/runs.py",
    "broker/warren/broker/store/segments.py",
    "broker/warren/broker/store/stream_record.py",
    "broker/warren/broker/store/stream_segment.py",
    "broker/warren/broker/store/stream_log.py",
    "broker/warren/broker/store/stream_reader.py",
    "broker/warren/broker/store/tail.py",
    "broker/warren/broker/bench/flow.py",
]


def extensions() -> list[object]:
    choice = os.environ.get("WARREN_COMPILE", "")
    if choice == "0" or (not choice and not (shutil.which("cc") or shutil.which("gcc"))):
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        if choice == "1":
            raise
        return []
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    # Without the site packages: a Warren that is installed there would be read in the place of this one.
    options = ["--no-site-packages", *COMPILED]
    return mypycify(options, opt_level="3", debug_level="0", group_name="warren")  # type: ignore[no-any-return]


setup(ext_modules=extensions())
