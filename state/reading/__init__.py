"""Readers that trust nothing: what is read from a disk or a network is checked before anything is built of it.

`plain_pickle` reads pickles as data, within `read_limits` and `reading_costs`, and builds `plain_values`. A pickle is
run in two places: one of a checkpoint in `stored_pickles`, one of a program in `program_pickles`; `program_classes`
says which classes state is read as, `own_attributes` what their objects have. `stored_json` and `arrow_reading` read
the rest. `signing` tells which files somebody with the cluster's key has written.

May import: `headrace.state.errors`, `headrace.state.identifiers`. Start reading at `read_limits`, then `plain_pickle`.
"""
