"""Data sets and table programs as a logical plan: nodes, and what executors must do for each of them.

`plan` says what a plan means; the modules of nodes say what each kind of node does; those of `table_nodes` only tables
have. Executors are `headrace.engine.partitions.in_process` and Spark's, in `headrace.actors.spark`.

May import: `headrace.engine.protocol` and the rooms below it. Start reading at `plan`.
"""
