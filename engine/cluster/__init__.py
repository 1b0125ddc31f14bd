"""The machines of a cluster: Dispatcher, ResourceManager, TaskManager, and the election of a leader.

`dispatcher` decides about jobs, with `dispatched_jobs`, `job_manager_hosts`, `cleanup`, `archive` and
`shutdown`; `reported_jobs` are data sets, which programs run themselves. Of several, one leads (`leadership`,
`standbys`), and what it must not forget is in the job store (`store_work`, `job_store_io`, `stored_jobs`).
`resource_manager` and `task_manager` are about processes, `blocklist` about nodes to avoid.

May import: `headrace.engine.job` and the rooms below it.
Start reading at `dispatcher`.
"""
