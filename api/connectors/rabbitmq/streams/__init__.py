"""Streams of RabbitMQ, as source and as sink: what is read is known by its offset, what is written by its number.

May import: `headrace.connectors.rabbitmq.protocol`, `headrace.connectors.messages`, `headrace.formats`,
`headrace.engine`, `headrace.state`. Start reading at `source`, then `reader`.
"""
