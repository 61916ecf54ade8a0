"""Failure of a round."""

from __future__ import annotations


class ChaosFailure(AssertionError):
    """The broker broke a guarantee, refused a client, or did not reply; or the round did not reach what it has to test."""
