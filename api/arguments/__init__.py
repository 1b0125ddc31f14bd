"""What programs hand to methods of streams and data sets: checked where it is written, and read in one way.

`checks` takes keys, fields, tags, numbers and durations; `data_types` are the types that records are declared with;
`known_columns` is what is known of columns before a program runs, `projections` which of them are kept; `places` is
which directories outlast a process. `function_shapes` are functions as type checkers know them, `absent_names` what is
written instead of a name of PyFlink that is not here. `compiled_loops` is what an installation has compiled.

May import: `headrace.engine`, `headrace.state`. Start reading at `checks`.
"""
