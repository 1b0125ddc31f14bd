"""Bounded programs on Spark inside the Ray cluster, through RayDP. Importing it loads neither Spark nor Ray.

`executor` is where plans come in; `session` is the running Spark, with `session_size` (how large it is) and
`process_ends` (how it ends); `lowering` is the translation.

May import: `headrace.actors.ray`, `headrace.engine`, `headrace.state`. Start reading at `executor`, then `lowering`.
"""
