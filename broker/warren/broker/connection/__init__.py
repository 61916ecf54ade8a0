"""Connections: from the listening socket to complete frames, and back.

- accepting: `listener`, `listen_address`, `acceptor`, `proxy_protocol`, `tls`
- limits of accepting: `descriptor_budget`, `admission`, `unopened_connections`, `client_network`
- reading and writing: `socket_reader`, `event_loop`, `turn_clock`, `connection`
- life of a connection: `connection_phases`, `lifecycle`, `handshake`, `login_delays`, `heartbeats`, `send_timeout`,
  `hangup_watch`, `tcp_statistics`, `connection_limits`, `connection_settings`
- shared by all connections: `broker_node`, `flow_control`

Routing, queues and delivery are not part of this package; see `warren.broker.channel` and `warren.broker.model`.
"""
