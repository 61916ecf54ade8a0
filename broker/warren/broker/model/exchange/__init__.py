"""Exchanges: one module for each type."""
