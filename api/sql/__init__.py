"""SQL: from a text to a plan. Nothing is run here.

`query` makes plans of queries, clause by clause: `from_clause`, with `temporal_joins` (FOR SYSTEM_TIME AS OF),
`window_functions` and `table_functions` (UNNEST, LATERAL TABLE); `group_by` and `grouping_sets`; `over_clauses`;
`order_by`; `subqueries`; `set_operations`. `expressions` makes expressions, with `constructors` for those with a syntax
of their own; names are found in a `scope`, nodes are made by `relations`. `contract` is what these modules know of each
other.

May import: `headrace.sql.parsing`, `headrace.sql.functions`, `headrace.engine`, `headrace.state`. Start reading at
`query`.
"""
