"""From plans of tables to streams: what each kind of node is on a stream that may never end.

`streams` goes through a plan and asks for each node the module of its kind: `rows`, `groups`, `joins`,
`windows`, by the table ``LOWERINGS`` of each. `builder` is what they work with.

May import: `headrace.table.connectors`, `headrace.stream`, `headrace.arguments`, `headrace.engine`,
`headrace.state`. Start reading at `streams`.
"""
