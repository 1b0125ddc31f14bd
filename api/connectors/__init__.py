"""Connectors: where records come from and where they go.

Here are those of one module: collections, generated records, sockets, scripts, printing and collecting; `files`,
`hybrid` and `sql` are rooms.

May import: `headrace.arguments`, `headrace.engine`, `headrace.state`. Start reading at `collection`, then `files`.
"""
