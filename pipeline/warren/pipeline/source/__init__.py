"""Reading from brokers into Spark rows: classic queues, streams, offsets, schema."""
