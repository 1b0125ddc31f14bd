"""The state backends: `heap` (dictionaries in the subtask's memory) and `rocksdb` (larger than memory).

`choice` holds the settings of both and is the one place that makes a backend. A backend keeps the contract in
`headrace.state.keyed.contract`; the same tests run over each.

May import: its rooms, `headrace.state.keyed` and the rooms below it. Start reading at `choice`.
"""
