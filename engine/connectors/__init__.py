"""Sources and sinks: the contracts that connectors keep, and the operators that drive them.

`contract` is what every connector is; `source_protocols` and `sink_protocols` are what it may be beside that, one
protocol each. `sources` drives a reader; `sinks` drives a writer and commits what it has prepared (`commits`), or
`global_commits` does so for all subtasks in one place.

May import: `headrace.engine.operators` and the rooms below it. Start reading at `contract`.
"""
