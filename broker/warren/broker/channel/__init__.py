"""Channels: publishing, delivery and the methods of AMQP 0-9-1.

- publishing: `channel`, `content_assembler`, `publish_outcome`, `publisher_confirms`,
  `transaction`
- delivery: `subscription` (prefetch of a consumer), `channel` (prefetch of the channel, acknowledgements),
  `ack_timeouts`, `direct_reply_to`
- all other methods: the package `methods`
"""
