"""One subtask of a function or operator, driven by hand, under a manual clock.

`harness` is what all harnesses have in common, `operator_harness` drives an operator, `function_harnesses` make one of
a function; `subtask` holds the state of one, `works` does the work that operators offload.

May import: `headrace.stream`, `headrace.arguments`, `headrace.engine`, `headrace.state`. Start reading at `harness`,
then `operator_harness`.
"""
