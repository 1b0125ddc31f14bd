"""What programs hand to methods of streams and data sets: checked where it is written, and read in one way.

`checks` takes keys, fields, tags, numbers and durations; `data_types` are the types that records are declared with;
`known_columns` is what is known of columns before a program runs; `places` is which directories outlast a process.

May import: `headrace.engine`, `headrace.state`. Start reading at `checks`.
"""
