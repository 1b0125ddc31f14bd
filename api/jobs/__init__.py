"""A submitted job, seen by its client: its status and end (`client`), its progress for people, a stream kept as
state that is asked for (`queryable_state`), and its snapshots as data (`snapshots`).

May import: `headrace.arguments`, `headrace.engine`, `headrace.state`. Start reading at `client`.
"""
