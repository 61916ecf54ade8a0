"""Helpers for tests.

Clients of the broker under test, none of which uses Warren's code:

- `raw_client`: one blocking socket; bytes, frames and methods, and all rules of the protocol may be broken.
- `blocking_client`: well-behaved connections and channels on top of `raw_client`, with every method as it came.
- `async_client`: asyncio, on aio-pika.
- `pika_connection`: pika's blocking connection, for tests of programs that need few operations.
- `frames`: frames encoded by hand, `queue_arguments`: queue.declare with argument fields of any type, `streams`: streams on
  `blocking_client`, `dead_letters` and `queue_assertions`: what a queue holds, `capture_reader`: streams of capture events.

Brokers:

- `in_process_broker`: Warren in this process, with a clock that tests move; `restarts`: stop or crash it and connect again.
- `broker_process`: `warren broker` as a child process; `rabbitmq`: RabbitMQ; `broker_behaviour`: their differences.
- `broker_definitions`: the same users and permissions on both; `operator_cli`: `warren ctl` and `rabbitmqctl`.

Other servers: `postgres`, `redis`, `s3`, `spark_cluster`; `certificates` for TLS.

Faults: `proxy` (a TCP proxy that cuts, delays and throttles), `proxy_faults` (at a certain frame), `proxy_tampering` (lost,
repeated and swapped messages), `cancellation` (cancel a coroutine at each await).

Waiting: `polling` (until a condition is true, blocking or in an event loop).

Processes: `processes` (children with deadlines, free ports), `worker_host` and `worker_processes` (workers that a test kills
at a certain point), `python_environments` (interpreters without Warren), `example_programs` (run a program as readers do).

pytest: `tiers` (which tests run when), `sharing` (distribution over processes), `parameter_ids` (stable parameter names).
"""
