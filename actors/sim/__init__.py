"""The simulator: all hosts in one thread, under virtual time, with a cluster's every fault, from one seed.

May import: `headrace.actors.hosts`, `headrace.engine`, `headrace.state`. Start reading at `system`.
"""
