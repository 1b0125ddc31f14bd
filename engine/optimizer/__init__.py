"""The optimiser of plans: rewrites a plan so that less is moved, sorted, read and computed.

`properties` is what is known of a node's result without running it, `rewriting` how rules look at a plan and change it,
`optimizer` the rules, `plan_text` the plan as text and JSON. Of tables: `table_rules` says which rules plans go
through, in order; for streams those of `top_n`, `window_aggregation`, `bounded_joins`, `chains` and others, for bounded
data `bounded_tables`. `stream_traits`, `upsert_keys` and `growth` say what is known of a node on a stream: whether its
rows change, its keys, how its state grows. The sub-rooms `tuning` and `upgrades` are above these modules.

May import: `headrace.engine.partitions` and the rooms below it. Start reading at `optimizer`.
"""
