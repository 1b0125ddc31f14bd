"""Files of data sets, as what reads and writes them sees them: one partition after another, in any executor.

`inputs` finds the files of a source, `reading` cuts them into splits and reads these; `writing` makes parts of
partitions, `outputs` makes parts the result.

May import: `headrace.connectors.files`, `headrace.formats`, `headrace.arguments`, `headrace.engine`, `headrace.state`.
Start reading at `reading`, then `outputs`.
"""
