"""Declared topology against a live broker: what is missing, differs, would not last, and could lose a message."""

from warren.sdk.topology.planning.broker_listing import (
    Listing,
    ListingError,
    Policy,
    from_control_socket,
    from_management,
)
from warren.sdk.topology.planning.definitions import definitions
from warren.sdk.topology.planning.plan import Plan, Planner, Status, Step
from warren.sdk.topology.planning.risks import Kind, Risk, risks

__all__ = [
    "Kind",
    "Listing",
    "ListingError",
    "Plan",
    "Planner",
    "Policy",
    "Risk",
    "Status",
    "Step",
    "definitions",
    "from_control_socket",
    "from_management",
    "risks",
]
