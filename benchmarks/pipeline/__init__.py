"""Benchmarks of reading and writing messages with Spark."""
