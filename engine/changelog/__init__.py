"""Operators of continuous queries: their input is changes of a table, and so is their output.

`group_aggregate` is GROUP BY, `join` the regular join, `rank` Top-N and deduplication, `over_changes` OVER; `by_key` is
what they have in common. `final_table` applies changes. Each takes changes in batches and emits the net difference of a
batch. An operator's module says what it does and can be imported anywhere; what it keeps is in a module of its own
(`grouped_state` and others; of one aggregate in the sub-room `accumulators`), which needs `headrace.engine.tables` and
is imported when the operator is opened.

May import: `headrace.engine.operators` and the rooms below it. Start reading at `group_aggregate`.
"""
