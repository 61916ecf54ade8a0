"""Benchmark of a quiet connection's longest wait, while another client causes a load."""
