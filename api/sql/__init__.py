"""SQL: from a text to a plan. Nothing is run here.

`query` makes plans of queries, clause by clause (`from_clause`, `grouping`, `over`, `windows`), `expressions` makes
expressions; names are found in a `scope`, nodes are made by `relations`.

May import: ``headrace.sql.parsing``, ``headrace.sql.functions``, the engine's expressions and plans. Start reading at
`query`.
"""
