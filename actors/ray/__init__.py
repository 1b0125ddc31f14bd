"""Hosts as Ray actors: one process each. The only code that speaks with Ray about actors.

`host` is such a process, `system` the whole as a client sees it; `connection` finds or starts Ray, with a `java` in
reach for Spark; `node_types` says what Ray may launch.

May import: `headrace.actors.hosts`, `headrace.engine`, `headrace.state`. Start reading at `host`.
"""

import logging

# Imported in a notebook, Ray says that a package is missing for what it would show of itself.
logging.getLogger("ray.widgets").setLevel(logging.WARNING)
