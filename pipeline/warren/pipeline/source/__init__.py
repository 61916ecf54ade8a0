"""Source side: reading of classic queues and streams into Spark rows."""
