"""A program of several operators, driven by hand, under a manual clock, at any parallelism.

`harness` is what a test calls; `ports` are where records go in and come out, `run` is the program as it runs, with its
checkpoints.

May import: `headrace.testing.operators`, `headrace.stream`, `headrace.jobs`, `headrace.arguments`, `headrace.engine`,
`headrace.state`. Start reading at `harness`, then `run`.
"""
