"""Load tool of `warren bench`: throughput, latency, processor time and correctness of any AMQP 0-9-1 broker."""
