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
    "wire/warren/wire/headers_splice.py",
    "broker/warren/broker/model/message.py",
    "broker/warren/broker/model/message_counts.py",
    "broker/warren/broker/model/queue/backing_queue.py",
    "broker/warren/broker/model/queue/priority_backing_queue.py",
    "broker/warren/broker/model/queue/delayed_messages.py",
    "broker/warren/broker/model/queue/delta.py",
    "broker/warren/broker/model/queue/discarded_messages.py",
    "broker/warren/broker/model/queue/paging.py",
    "broker/warren/broker/model/memory_budget.py",
    "broker/warren/broker/model/queue/expiry.py",
    "broker/warren/broker/model/queue/length_limit.py",
    "broker/warren/broker/model/exchange/exchange.py",
    "broker/warren/broker/model/exchange/topic.py",
    "broker/warren/broker/model/message_codec.py",
    "broker/warren/broker/model/queue/ready_ring.py",
    "broker/warren/broker/model/queue/consumer_scheduler.py",
    "broker/warren/broker/model/queue/consumer.py",
    "broker/warren/broker/model/capture/event_batcher.py",
    "broker/warren/broker/model/capture/consumer_events.py",
    "broker/warren/broker/model/capture/life_cycle_hook.py",
    "broker/warren/broker/model/capture/message_spans.py",
    "broker/warren/broker/model/queue/queue.py",
    "broker/warren/broker/model/dead_letter/death_history.py",
    "broker/warren/broker/model/dead_letter/dead_letter_fan_out.py",
    "broker/warren/broker/model/dead_letter/dead_letter_source.py",
    "broker/warren/broker/model/dead_letter/dead_lettering.py",
    "broker/warren/broker/model/stream/entry_codec.py",
    "broker/warren/broker/model/stream/stream_reader.py",
    "broker/warren/broker/model/stream/tail_cache.py",
    "broker/warren/broker/model/stream/stream.py",
    "broker/warren/broker/model/vhost/vhost.py",
    "broker/warren/broker/model/vhost/bulk_publish.py",
    "broker/warren/broker/operations/publishing.py",
    "broker/warren/broker/channel/channel.py",
    "broker/warren/broker/channel/bulk_settlement.py",
    "broker/warren/broker/channel/bulk_commit.py",
    "broker/warren/broker/channel/publish_outcome.py",
    "broker/warren/broker/channel/publisher_confirms.py",
    "broker/warren/broker/channel/content_assembler.py",
    "broker/warren/broker/channel/subscription.py",
    "broker/warren/broker/channel/transaction.py",
    "broker/warren/broker/connection/connection.py",
    "broker/warren/broker/connection/large_output.py",
    "broker/warren/broker/connection/flow_control.py",
    "broker/warren/broker/connection/broker_node.py",
    "broker/warren/broker/connection/turn_clock.py",
    "broker/warren/broker/connection/socket_reader.py",
    "broker/warren/broker/store/sequence_ranges.py",
    "broker/warren/broker/store/index/index_format.py",
    "broker/warren/broker/store/index/index_builder.py",
    "broker/warren/broker/store/index/index_reader.py",
    "broker/warren/broker/store/index/index_store.py",
    "broker/warren/broker/store/index/index_job.py",
    "broker/warren/broker/store/index/index_scheduler.py",
    "broker/warren/broker/store/log/record_format.py",
    "broker/warren/broker/store/log/segment.py",
    "broker/warren/broker/store/log/segment_reader.py",
    "broker/warren/broker/store/log/segment_deletion.py",
    "broker/warren/broker/store/log/live_messages.py",
    "broker/warren/broker/store/log/queue_log.py",
    "broker/warren/broker/store/log/record_group.py",
    "broker/warren/broker/store/log/pending_changes.py",
    "broker/warren/broker/store/log/write_buffer.py",
    "broker/warren/broker/store/log/group_commit.py",
    "broker/warren/broker/store/log/log.py",
    "broker/warren/broker/store/log/recovery.py",
    "broker/warren/broker/store/read/record_reader.py",
    "broker/warren/broker/store/read/sequence_lookup.py",
    "broker/warren/broker/store/stream/chunk_format.py",
    "broker/warren/broker/store/stream/chunk_reader.py",
    "broker/warren/broker/store/stream/stream_segment.py",
    "broker/warren/broker/store/stream/stream_retention.py",
    "broker/warren/broker/store/stream/stream_log.py",
    "broker/warren/broker/bench/message_flow.py",
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


def project_urls() -> dict[str, str]:
    """Return the links of the package's page on the index, from the URL of the repository in WARREN_REPOSITORY_URL."""
    repository = os.environ.get("WARREN_REPOSITORY_URL", "").rstrip("/")
    if not repository:
        return {}
    return {
        "Repository": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Documentation": os.environ.get("WARREN_DOCUMENTATION_URL") or f"{repository}/tree/main/docs",
    }


setup(ext_modules=extensions(), project_urls=project_urls())
