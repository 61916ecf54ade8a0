"""The commands of the SDK: run, publish, call, topology, asyncapi; each imports what it needs when it runs."""
