"""Verbs: operations of the broker that `warren ctl` requests over the control socket, one module for each subject.

RabbitMQ's documentation of rabbitmqctl describes the verbs, which have the same names there.
"""
