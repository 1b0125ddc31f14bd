"""Aggregates: one value of many records, by batches and by rows.

`contract` is what an aggregate is, and computes several of them on batches; `by_row` does so on records. `built_in` and
`statistics` are those that there are.

May import: `headrace.engine.functions` and the rooms below it. Start reading at `contract`, then `built_in`.
"""
