"""A cluster's REST server, seen by its client.

`client` has the two clients: one that waits, and one to be awaited. Neither needs Ray, or to be on the cluster.
`served_jobs` are the jobs of all clusters of this user on this machine, as commands ask for them. `job_link` says where
the dashboard shows a job.

May import: `headrace.arguments`, `headrace.engine`, `headrace.state`. Start reading at `client`.
"""
