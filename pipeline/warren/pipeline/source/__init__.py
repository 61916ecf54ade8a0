"""Read side of the data source `amqp`: messages of classic queues and streams are read as Spark rows."""
