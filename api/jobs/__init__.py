"""A submitted job, seen by its client.

`deployment` says where a program's jobs run, `restoring` what they go on from. `client` has a job's status and its end
(`execution_result`), `conversation` is how it asks, `progress` shows it to people; `queryable_state` is a stream kept
as state that is asked for, `snapshots` are a job's snapshots as data.

May import: `headrace.rest`, `headrace.arguments`, `headrace.engine`, `headrace.state`. Start reading at `client`.
"""
