"""What becomes of a query's state when another query goes on from it.

`identity` finds what an operator of a plan is about, whatever its text calls it, by `digests` of what it says;
`kept_parts` are what it is and what it keeps, as data;
`stored_plan` is what a savepoint knows of the plan that it was taken of; `matching` finds for each operator the stored
one; `upgrade` says what becomes of it.

May import: `headrace.engine.optimizer` and the rooms below it. Start reading at `upgrade`.
"""
