"""The SDK beside other clients, on the same brokers in the same run."""
