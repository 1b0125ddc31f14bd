"""Windows on columns: batches become partial results per key and window, which are merged when windows fire.

`slices` computes windows that are made of slices, `sessions` session windows; each has an operator for the first phase,
before the shuffle, and one for the second. `phases` is what the two phases have in common, and the table that is kept;
`slice_grouping` and `session_grouping` are the kernels, the one with how slices lie on the axis of time.

May import: `headrace.engine.operators` and the rooms below it. Start reading at `slices`.
"""
