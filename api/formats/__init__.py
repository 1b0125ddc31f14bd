"""Formats of files and messages: how bytes are records, and records bytes. Text, CSV, JSON, Avro, Protocol
Buffers, Debezium's; in `headrace.formats.containers` files that say themselves what they hold.

Each is here once, for streams and data sets, for sources and sinks, and for every connector that carries bytes. Nothing
here knows a split, a checkpoint or a plan. Start with `contract`; `blocks` reads a file as blocks of whole records.
`messages` has those of queues. May import: `headrace.engine.changelog.changes`, `headrace.engine.columns`,
`headrace.engine.functions`, `headrace.engine.errors`, `headrace.state`.
"""
