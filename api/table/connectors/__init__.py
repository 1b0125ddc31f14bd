"""What tables are connected to: `contract` says what a connector gives, the others are those there are.

A connector of a table has Flink's options and makes of them what the API has already: sources and sinks of streams, and
data sets. `headrace.table.services.connectors_by_name` finds them by the option ``connector``.

May import: `headrace.stream`, `headrace.dataset`, `headrace.connectors`, `headrace.formats`, `headrace.sql.parsing`,
`headrace.engine`, `headrace.state`. Start reading at `contract`.
"""
