"""Write side of the data source `amqp`: rows of a DataFrame are published as messages, each of them confirmed."""
