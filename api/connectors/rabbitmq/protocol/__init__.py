"""How RabbitMQ is talked to: `address` is where it is, `stream_client` speaks the protocol of streams, `amqp10` reads
their messages.

May import: `headrace.connectors.messages`, `headrace.engine`, `headrace.state`. Start reading at `address`.
"""
