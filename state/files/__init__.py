"""File systems: the few operations that checkpoints and sinks are built from, over every kind of storage.

`filesystem` is the contract; `local`, `objects` (S3, Google, Azure), `hdfs`, `arrow` (what pyarrow and fsspec know) and
`memory` (tests and the simulator) keep it, with `client_streams` for what client libraries read and write.
`local_directories` and `spilling` are for data that is gone with the process that wrote it; `rest_addresses` says where
this user's REST servers are.

May import: `headrace.state.values`. Start reading at `filesystem`.
"""
