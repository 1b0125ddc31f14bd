"""What all phases of a job have at hand: where it stands, what runs of it, what is told of it, and to whom.

`job` holds the rest together, and alone changes the phase. `phase` has the phases and which may follow which; `state`
is where the job stands, as data. `running` is what runs (its executions, with what `deployment` sends to their slots).
`record` is what people see, with `metrics` and `reports` of tasks; `clients` is who waits for news. `stop` and
`savepoints` are what clients have asked for.

May import: `headrace.engine.job.sources` and the rooms below it. Start reading at `phase`, then `state`.
"""
