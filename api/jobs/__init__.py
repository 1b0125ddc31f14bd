"""A submitted job, seen by its client.

`client` has its status and its end (`execution_result`), `progress` shows it to people; `queryable_state` is a stream
kept as state that is asked for, `snapshots` are a job's snapshots as data.

May import: `headrace.arguments`, `headrace.engine`, `headrace.state`. Start reading at `client`.
"""
