"""The JobManager of one job: deploys it, watches it, restarts it, ends it.

`job_manager` routes events. What means something in one phase only is in a module of that phase (`phases`); what can
happen in any of them is here, by whom it comes from: `task_reports`, `slots`, `checkpointing`, `questions` of clients,
and `rescale`. All of them decide by what the sub-room `context` holds; `sources` speaks with split enumerators.

May import: `headrace.engine.checkpoint`, `headrace.engine.execution` and the rooms below them. Start reading at
`job_manager`, then `phases.executing`.
"""
