"""What every machine of the engine is made of: events in, commands out.

`machine` is the contract between decision logic and the actor systems, `link` makes an unreliable network reliable,
`metrics` counts, `config` holds the settings of jobs and clusters.

May import: `headrace.state`. Start reading at `machine`.
"""
