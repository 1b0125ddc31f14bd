"""Queues of RabbitMQ, as source and as sink: what is read is acknowledged behind checkpoints.

May import: `headrace.connectors.rabbitmq.protocol`, `headrace.connectors.messages`, `headrace.formats`,
`headrace.engine`, `headrace.state`. Start reading at `source`, then `reader`.
"""
