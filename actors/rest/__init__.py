"""REST for a cluster: a client of the cluster that lives beside its Dispatcher and speaks HTTP.

`table` has all routes, and the room `resources` what each answers, from views; with `security` and `openapi` these are
pure. `server` speaks HTTP in a thread, and `host` is its life in the head.

May import: `headrace.actors.hosts`, `headrace.actors.rest.resources`, `headrace.engine`, `headrace.state`.
Start reading at `table`, then `server`.
"""
