"""Comparison of Warren with other brokers on one machine: alternating runs, stored as JSON, shown as a page and a chart."""
