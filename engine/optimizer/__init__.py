"""The optimiser of plans: rewrites a plan so that less is moved, sorted, read and computed.

`properties` is what is known of a node's result without running it, `rewriting` how rules look at a plan and change
it, `optimizer` the rules, `explain` the plan as text and JSON.

May import: the rooms of data sets, and those that they import. Start reading at `optimizer`.
"""
