"""From the calls of a program to what is deployed: transformations, stream graph, job graph.

`transformations` records the calls, `stream_graph` decides everything about operators and edges, `chaining` puts
operators together into vertices, `job_graph` is what a client submits. `rescaling` gives the same graph at another
parallelism; `explain` shows it to people.

May import: `headrace.engine.windows`, `headrace.engine.joins` and the rooms below them. Start reading at
`stream_graph`.
"""
