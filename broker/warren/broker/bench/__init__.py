"""Load tool `warren bench`: measures throughput, latency, processor time and correctness of any AMQP broker."""
