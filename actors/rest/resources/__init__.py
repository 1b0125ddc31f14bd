"""What REST answers, a module for each kind of thing: functions from a request to JSON, with Flink's keys.

They read views and ask through `questions`, once for all who ask the same; they know neither HTTP nor Ray. `jobs`,
`vertices`, `checkpoints`, `metrics` and `cluster` look, `operations` changes something. A key of Flink's is there only
if it means what it means there; what cannot be answered truly is left out.

May import: `headrace.actors.clients`, `headrace.actors.hosts`, `headrace.engine`, `headrace.state`. Start reading at
`jobs`, then `routes`.
"""
