"""SQL: from a text to a plan. Nothing is run here.

`query` makes plans of queries, clause by clause: `from_clause`, with `temporal` (FOR SYSTEM_TIME AS OF), `windows` and
`table_functions` (UNNEST, LATERAL TABLE); `grouping` and `grouping_sets`; `over`; `ordering`; `subqueries`;
`set_operations`. `expressions` makes expressions, with `constructors` for those with a syntax of their own; names are
found in a `scope`, nodes are made by `relations`. `contract` is what these modules know of each other.

May import: `headrace.sql.parsing`, `headrace.sql.functions`, `headrace.engine`, `headrace.state`. Start reading at
`query`.
"""
