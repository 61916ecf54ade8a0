"""Declared topology against a live broker: what is missing, differs, would not last, and could lose a message."""

from warren.sdk.planning.definitions import definitions
from warren.sdk.planning.listing import Listing, ListingError, Policy, from_control_socket, from_management
from warren.sdk.planning.plan import Plan, Planner, Status, Step
from warren.sdk.planning.risks import Kind, Risk, risks

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
