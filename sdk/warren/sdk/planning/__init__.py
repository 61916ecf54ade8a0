"""Topology planning: compare declared topology with a live broker, find risks, apply the missing parts."""

from warren.sdk.planning.broker_listing import (
    Listing,
    Policy,
    from_control_socket,
    from_management,
)
from warren.sdk.planning.definitions import definitions
from warren.sdk.planning.management_api import ListingError, ManagementApi
from warren.sdk.planning.plan import Plan, Planner, Status, Step
from warren.sdk.planning.risks import Kind, Risk, risks
from warren.sdk.topology.declarable import label
from warren.sdk.topology.queue_roles import QueueRole, role_of

__all__ = [
    "Kind",
    "Listing",
    "ListingError",
    "ManagementApi",
    "Plan",
    "Planner",
    "Policy",
    "QueueRole",
    "Risk",
    "Status",
    "Step",
    "definitions",
    "from_control_socket",
    "from_management",
    "label",
    "risks",
    "role_of",
]
