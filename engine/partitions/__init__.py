"""What the nodes of a plan do to partitions of records, and the executor that runs a plan in this process.

`drivers`, `groups`, `two_inputs` and `over_groups` are called by every executor, Spark's Python processes included;
`wire_records` gives schemas, keys and order one meaning for all of them, `shipping` says which partition a record goes
to. `in_process` is the reference executor.

May import: `headrace.engine.plan` and the rooms below it. Start reading at `drivers`, then `in_process`.
"""
