"""What all actor systems share: a host, which runs machines, and what a host needs of its system.

`host` is the kernel of a host; `host_system` what it asks of an actor system; `offloads` runs calls beside it;
`garbage` says how often Python looks for garbage. `wire` is how messages become bytes; `interrupts` is Ctrl-C in a
program that waits.

May import: `headrace.engine`, `headrace.state`. Start reading at `host`.
"""
