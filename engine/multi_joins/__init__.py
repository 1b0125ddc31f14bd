"""Regular joins of many inputs by one key, as one operator over changes.

`multi_join` is the operator, `multi_join_state` what it keeps, `chain_state` what a batch comes to for one chain of
joins, `join_step` how one input is joined.

May import: `headrace.engine.changelog` and the rooms below it. Start reading at `multi_join`.
"""
