"""Benchmarks of the SDK compared with other client libraries."""
