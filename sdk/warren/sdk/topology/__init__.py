"""Topology: exchanges, queues and bindings as values, their declaration, and the report of mismatches."""
