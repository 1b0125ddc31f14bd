"""What runs in a slot: one subtask, its operator chain, its channels, and its part in a checkpoint.

`slot` gives the next runnable task a bounded step, `turns` says which one that is; `task` takes elements from channels
and drives its chain, `source_turns` asks a source; `channels` are numbered, credited and lose nothing; `barriers` and
`checkpoints` take a barrier through the task; `in_flight` logs what an unaligned checkpoint holds; `loops` closes
iterations.

May import: `headrace.engine.protocol` and the rooms below it. Start reading at `task`.
"""
