"""User functions: what a program may hand to a transformation, and how an operator holds and calls it.

`contract` has the functions of one stream, `cofunctions` those of two, `async_functions` those that wait for outside
systems; those that are built in are in the sub-room `aggregates`. `runtime_context` and `side_outputs` are what
functions are given beside records. `user_function` opens, closes and names a function, `row_calls` calls it with one
record after another. `operator` is what an operator is. `isolation` gives each function records of its own; `steps`
bounds how much is done at once.

May import: `headrace.engine.columns` and the rooms below it. Start reading at `operator`, then `contract`.
"""
