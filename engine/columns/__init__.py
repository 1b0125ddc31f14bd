"""Records and columns: batches, expressions over them, and the kernels that compute.

`records` says what flows in a channel. `expressions` are the trees that a program writes; `kernels` evaluate them with
Arrow; `grouping` finds which rows of a batch belong together.

May import: `headrace.engine.kernel`, `headrace.state`. Start reading at `records`.
"""
