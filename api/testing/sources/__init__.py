"""A source of one's own under test: `harness` drives its parts, `subject` is what a check is told of it.

May import: `headrace.engine`, `headrace.state`. Start reading at `harness`.
"""
