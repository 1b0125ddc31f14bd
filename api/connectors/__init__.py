"""Connectors: where records come from and where they go.

Here are those of one module: collections, generated records, sockets, scripts, printing and collecting. Each other
system has a room. What rooms share is in `messages` (clients in threads, records of messages, numbered output),
`upserts` (sinks that write by key) and `lake` (tables that are lists of files).

May import: `headrace.arguments`, `headrace.engine`, `headrace.state`. Start reading at `collection`, then `files`.
"""
