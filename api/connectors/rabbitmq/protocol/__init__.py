"""How RabbitMQ is talked to: `address` is where it is, `stream_client` the protocol of streams, `amqp10` their messages.

May import: `headrace.engine`, `headrace.state`. Start reading at `address`.
"""
