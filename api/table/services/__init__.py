"""Connectors of tables in services (HTTP, Kinesis, MongoDB, MQTT, Pulsar ...), and the names of all connectors.

May import: `headrace.table.connectors`, `headrace.stream`, `headrace.connectors`, `headrace.engine`, `headrace.state`.
Start reading at `connectors_by_name`.
"""
