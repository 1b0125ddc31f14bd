"""The functions of SQL: what each is called with, and what a call becomes.

`registry` finds them by name. A new one is a line in ``FUNCTIONS`` of its kind (`texts`, `patterns`, `printf`,
`encodings`, `numbers`, `times`, `arrays`, `maps`, `json_functions`), an aggregate one in `aggregates`; a new module is
also named in `registry`. `catalogue` has what is written with signs and words, and what of Flink's is not there.
`coercion` says how types come together.

May import: `headrace.sql.parsing`, `headrace.engine.functions` and the rooms below it. Start reading at `contract`.
"""
