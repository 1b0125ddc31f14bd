"""A cluster's REST server, seen by its client.

`client` has the two clients: one that waits, and one to be awaited. Neither needs Ray, or to be on the cluster.

May import: `headrace.state`. Start reading at `client`.
"""
