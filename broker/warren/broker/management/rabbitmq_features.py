"""RabbitMQ's feature flags and deprecated features, as they apply to this broker.

Tools ask for them before they use a feature. Source: RabbitMQ 4.3 (https://www.rabbitmq.com/docs/feature-flags and
https://www.rabbitmq.com/docs/deprecated-features).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from warren.broker.management.request import Json
from warren.broker.model.compat_checks import PortabilityChecks

FEATURE_FLAGS: Final = (
    "classic_queue_type_delivery_support",
    "detailed_queues_endpoint",
    "direct_exchange_routing_v2",
    "drop_unroutable_metric",
    "empty_basic_get_metric",
    "feature_flags_v2",
    "implicit_default_bindings",
    "message_containers",
    "message_containers_deaths_v2",
    "quorum_queue",
    "rabbit_exchange_type_local_random",
    "rabbitmq_4.0.0",
    "rabbitmq_4.1.0",
    "rabbitmq_4.2.0",
    "rabbitmq_4.3.0",
    "stream_filtering",
    "stream_queue",
    "stream_single_active_consumer",
    "user_limits",
    "virtual_host_metadata",
)
"""RabbitMQ's feature flags whose features this broker has; all are on. Those of clusters and Khepri are left out."""

ANNOUNCEMENT: Final = "https://blog.rabbitmq.com/posts/2021/08/4.0-deprecation-announcements/#"
PERMITTED: Final = "permitted_by_default"
DENIED: Final = "denied_by_default"
REMOVED: Final = "removed"


class DeprecatedFeature(NamedTuple):
    """One of RabbitMQ's deprecated features.

    :ivar phase: its phase in RabbitMQ 4.3: permitted_by_default, denied_by_default or removed.
    :ivar rule: key of `PORTABILITY_RULES` that notices its use; empty if this broker lacks the feature.
    """

    name: str
    phase: str
    doc_url: str
    rule: str = ""


DEPRECATED_FEATURES: Final = (
    DeprecatedFeature("queue_master_locator", DENIED, "", "master_locator"),
    DeprecatedFeature("global_qos", DENIED, f"{ANNOUNCEMENT}removal-of-global-qos", "global_qos"),
    DeprecatedFeature(
        "transient_nonexcl_queues",
        PERMITTED,
        f"{ANNOUNCEMENT}removal-of-transient-non-exclusive-queues",
        "transient_queue",
    ),
    DeprecatedFeature(
        "classic_queue_mirroring",
        REMOVED,
        f"{ANNOUNCEMENT}removal-of-classic-queue-mirroring",
        "mirror_policy",
    ),
    DeprecatedFeature("ram_node_type", REMOVED, f"{ANNOUNCEMENT}removal-of-ram-nodes"),
)
"""Deprecated features that concern AMQP 0-9-1 and the management of one node."""


def feature_flags() -> list[dict[str, Json]]:
    """Return the feature flags as the HTTP API shows them."""
    return [
        {
            "name": name,
            "desc": "",
            "doc_url": "",
            "state": "enabled",
            "stability": "required",
            "require_level": "hard",
            "experiment_level": "supported",
            "callbacks": [],
            "provided_by": "rabbit",
        }
        for name in FEATURE_FLAGS
    ]


def deprecated_features(portability: PortabilityChecks) -> list[dict[str, Json]]:
    """Return the deprecated features as the HTTP API shows them.

    A feature that RabbitMQ denies is permitted here if this broker has it, unless `strict` is set.
    """
    return [
        {
            "name": each.name,
            "desc": "",
            "doc_url": each.doc_url,
            "state": "permitted" if _is_permitted(each, portability) else "denied",
            "deprecation_phase": each.phase,
            "provided_by": "rabbit",
        }
        for each in DEPRECATED_FEATURES
    ]


def used_deprecated_features(portability: PortabilityChecks) -> list[dict[str, Json]]:
    """Return the deprecated features that clients have used since the broker started, without `state`."""
    used = {each.name for each in DEPRECATED_FEATURES if portability.was_used(each.rule)}
    found = [each for each in deprecated_features(portability) if each["name"] in used]
    return [{name: value for name, value in each.items() if name != "state"} for each in found]


def _is_permitted(feature: DeprecatedFeature, portability: PortabilityChecks) -> bool:
    return feature.phase == PERMITTED or (bool(feature.rule) and not portability.strict)
