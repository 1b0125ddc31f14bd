"""Windows: assigners, triggers, evictors, and the three paths on which windows are computed.

The columnar path (the sub-room `columnar`) merges partial results of built-in aggregates; the fast path (`placement`)
puts whole batches into windows of built-in kinds; the general path (`general`) takes any assigner, trigger and evictor.
`window_operator` drives the last two; which path a window takes is decided when the program is written.

May import: `headrace.engine.operators` and the rooms below it. Start reading at `assigners`, then `window_operator`.
"""
