"""The simulator: all hosts in one thread, under virtual time, with a cluster's every fault, from one seed.

`system` is the whole; `faults` says what goes wrong, `processes` is a simulated host and how it does offloaded work,
`story` is what has happened.

May import: `headrace.actors.hosts`, `headrace.engine`, `headrace.state`. Start reading at `system`.
"""
