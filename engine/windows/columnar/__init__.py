"""Windows on columns: batches become partial results per key and window, which are merged when windows fire.

`slices` computes windows that are made of slices, `sessions` session windows; each has an operator for the first phase,
before the shuffle, and one for the second. `phases` is what the two phases have in common, and the table that is kept;
`slice_layout` says how windows lie on the axis of time; `slice_grouping` and `session_grouping` are the kernels.

May import: `headrace.engine.operators` and the rooms below it. Start reading at `slices`.
"""
