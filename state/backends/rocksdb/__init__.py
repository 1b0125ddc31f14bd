"""State in RocksDB: larger than memory, with checkpoints that write only what has changed.

`backend` is the whole; `tables` are keyed tables over `rows`, which are mappings over the bytes of `row_encoding`;
`columnar` are tables of record batches; `cache` keeps rows as objects, `database` holds the one open database of an
operator's subtask, and `files` brings its files into a snapshot and out of one.

May import: `headrace.state.keyed` and the rooms below it. Start reading at `backend`.
"""
