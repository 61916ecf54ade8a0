"""Operations on exchanges, queues, bindings and messages, as clients and operators ask for them.

Each is one function. It checks the permissions of a `Principal`, checks the state of what it concerns, waits until that
is settled, and acts. It refuses with an `AmqpError`, whose reply code and text are those of RabbitMQ. AMQP methods,
resources of the HTTP API and verbs of `warren ctl` call it: they parse what was asked for, choose how to wait, and format
the outcome.

- who asks: `principal`
- how it waits: `waiting`
- operations: `exchanges`, `queues`, `bindings`, `publishing`, `messages`
"""
