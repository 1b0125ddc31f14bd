"""The JobManager of one job: deploys it, watches it, restarts it, ends it.

`state` is where a job stands, as data; `job` has that at hand, with what runs (`running`) and what is told (`record`).
One module for each phase or two: `preparing`, `slot_requests`, `deploying`, `executing`, `canceling`, `ending`; one for
what can happen in any of them: `failures`, `slots`, `task_reports`, `checkpointing`, `questions`, `rescale`.
`job_manager` routes events to these. The sub-room `sources` speaks with split enumerators.

May import: `headrace.engine.checkpoint`, `headrace.engine.execution` and the rooms below them. Start reading at
`job_manager`.
"""
