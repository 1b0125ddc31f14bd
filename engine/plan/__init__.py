"""Bounded data sets as a logical plan: nodes, and what executors must do for each of them.

`plan` says what a plan means; the modules of nodes say what each kind of node does. Executors are
`headrace.engine.partitions.local` and Spark's, in `headrace.actors.spark`.

May import: `headrace.engine.columns`, `headrace.engine.kernel`. Start reading at `plan`.
"""
