"""Operators over tables that go by event time: rows wait until the watermark has passed them, what is out stays.

`over_by_time` is OVER, `sort` ORDER BY event time, `temporal_join` FOR SYSTEM_TIME AS OF, `interval_join` joins of rows
near in time or of one window. An operator's module says what it does and can be imported anywhere; what it keeps is in
a module of its own, which needs `headrace.engine.tables` and is imported when the operator is opened.

May import: `headrace.engine.operators`, `headrace.engine.frames`, `headrace.engine.changelog` and the rooms below them.
Start reading at `over_by_time`.
"""
