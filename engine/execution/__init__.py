"""The execution graph: the parallel form of a job graph, the states of its tasks, and who runs where.

`graph` says which states a task and a job may go through, `scheduling` puts subtasks into slots, `regions` says what
is restarted together, `slot_registry` knows which slots live.

May import: `headrace.engine.protocol` and the rooms below it. Start reading at `graph`.
"""
