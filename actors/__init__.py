"""Actor systems, and the only code that knows Ray and Spark.

They carry messages to the machines of `headrace.engine` and do what these decide. `hosts` is what the actor systems
`local`, `sim` and `ray` share; `spark` runs data sets. `cluster` is what clients hold, `connecting` makes or finds it,
`head` is what a cluster begins with.

May import: its rooms, `headrace.engine`, `headrace.state`. Of the rooms `local`, `sim` and `ray` import `hosts`,
`spark` imports `ray`. Start reading at `hosts.host`, then `cluster`.
"""
