"""What it costs to read and write messages with Spark."""
