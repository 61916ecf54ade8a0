"""Policies, operator policies and runtime parameters."""
