"""Operators: what runs in a task's chain, one per transformation of a program.

Rows (`row_operators`), columns (`column_operators`), keyed processing with state and timers (`process`), two
inputs (`connected`, `broadcast`), requests to outside systems (`async_operator`), event time (`event_time`,
`watermark_valve`), the sorted input of a batch (`sorted_input`), and which subtask a record goes to (`exchange`).

May import: `headrace.engine.functions` and the rooms below it. Start reading at `row_operators`, then `process`.
"""
