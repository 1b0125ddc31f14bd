"""The JobManager of one job: deploys it, watches it, restarts it, ends it.

`job_manager` routes events; `lifecycle` takes the job through the phases of `phase`; `running` has its executions;
`savepoints`, `rescale` and `stopping` are commands of users; `source_coordinator` speaks with the sources.

May import: `headrace.engine.checkpoint`, `headrace.engine.execution` and the rooms below them. Start reading at
`job_manager`.
"""
