"""The text of SQL: what it says, as trees and data, before anything is looked up.

`parser` makes `statements` of a text, with the `dialect` of Flink that sqlglot reads; `understood` refuses what nobody
looks at; `sql_types` knows SQL's types, `errors` shows places of the text.

May import: `headrace.engine.errors`. Start reading at `parser`.
"""
