"""Statistics of a running broker: message counts of queues, channels and virtual hosts, their rates and their history."""
