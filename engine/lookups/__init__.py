"""What an outside table has for the key of a record or row: asked when it comes, and remembered for a while.

`enrichment` joins records of streams with what a function of the program finds; `table_join` and `async_table_join`
join rows of tables, the one waiting for answers and the other not. What the two have in common is in
`batch_questions`; `keyed_rows` finds rows by their keys. The contract of tables that can be asked is
`headrace.engine.connectors.table_lookup`.

May import: `headrace.engine.connectors` and the rooms below it. Start reading at `enrichment`, then `table_join`.
"""
