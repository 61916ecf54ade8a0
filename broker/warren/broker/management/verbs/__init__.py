"""Verbs: operations of the broker that `warren ctl` requests over the control socket, one module for each subject.

A verb with the name of a command of rabbitmqctl does what RabbitMQ documents for that command.
"""
