"""The functions of SQL: what each is called with, and what a call becomes.

`registry` finds them by name. A new one is a line in the table of its kind: `texts`, `numbers`, `times`; an aggregate
one in `aggregates`. `coercion` says how types come together.

May import: ``headrace.sql.parsing``, the engine's expressions and aggregates. Start reading at `contract`.
"""
