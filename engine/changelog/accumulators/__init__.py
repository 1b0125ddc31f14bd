"""What group aggregates keep of each group: numbers, parts or values, to which records are added and taken away again.

`contract` says what an accumulator is, `group_accumulators` chooses one for an aggregate: `numbers` or `kept_columns`.
Values that are counted are in tables that several aggregates read (`counted_values`, `value_arguments`), or listed
(`listed_values`). `partial_results` is what batches come to before they are sent.

May import: `headrace.engine.tables`, `headrace.engine.functions` and the rooms below them. Start reading at `contract`,
then `accumulator_of` in `group_accumulators`.
"""
