"""What can be said of a row by the rows around it in an order: places, neighbours, aggregates over frames.

`frame_calls` are the things that can be asked for and the frames that they are over, as data. `ordered_rows` has rows
in order, partition by partition, and finds each row's frame; `folds` works out what frames come to, on arrays. `loops`
are the loops, compiled by numba, imported by these two alone. Batch plans (`headrace.engine.partitions.over_groups`)
and streams (`headrace.engine.timed`) are both made of it, so that OVER means one thing.

May import: `headrace.engine.tables` and the rooms below it. Start reading at `frame_calls`.
"""
