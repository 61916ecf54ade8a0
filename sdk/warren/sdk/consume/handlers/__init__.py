"""Handlers: decorators, signatures and registration."""
