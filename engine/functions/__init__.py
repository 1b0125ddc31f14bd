"""User functions: what a program may hand to a transformation, and how an operator holds and calls it.

`contract` has the functions of one stream, `cofunctions` those of two, `async_functions` those that wait for outside
systems; `aggregates` are built in. `operator` is what an operator is and what it tells its functions (its context).
`isolation` gives each function records of its own; `steps` bounds how much is done at once.

May import: `headrace.engine.columns`, `headrace.engine.kernel`. Start reading at `operator`, then `contract`.
"""
