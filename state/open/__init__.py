"""Snapshots as data: states of a checkpoint as Arrow tables, read and written outside of any job.

The same code drafts the files of a checkpoint that a running job takes (`drafts`). Nothing here runs a user's code:
what would need it stays closed (`values`). `stored_states` says from the manifest which states there are.

May import: every other room of `headrace.state`. Start reading at `reader`.
"""
