"""The optimiser of plans: rewrites a plan so that less is moved, sorted, read and computed.

`properties` is what is known of a node's result without running it, `rewriting` how rules look at a plan and change it,
`optimizer` the rules, `explain` the plan as text and JSON. Of tables: `tables` has the rules for streams and for
bounded data, with `unions`, `bounded_joins`, `table_columns`, `window_rows` and `temporal_rows`; `stream_traits`,
`upsert_keys` and `growth` say what is known of a node on a stream: whether its rows change, its keys, how its state
grows. The sub-rooms `tuning` and `upgrades` are above these modules.

May import: the rooms of data sets, and those that they import. Start reading at `optimizer`.
"""
