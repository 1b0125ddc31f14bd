"""Tables that live as long as an operator: keys, rows and counts in NumPy arrays, kept as runs of a columnar state.

`key_index` numbers keys, `columns` hold values by number, `row_store` holds the rows of an input by key, `value_counts`
how often each value of a key occurs; `run_log` keeps what has changed, and what is not in memory, as runs
(`hash_runs`); `resident_keys` says which keys are in memory. `table_loops` are the loops, compiled by numba: they
are imported by these modules alone, which operators import when they are opened and never before.

May import: `headrace.engine.functions` and the rooms below it. Start reading at `key_index`, then `row_store`.
"""
