"""All hosts in one process, on one event loop.

May import: `headrace.actors.hosts`, `headrace.engine`, `headrace.state`. Start reading at `system`.
"""
