"""Where checkpoints, savepoints, jobs and leases lie on durable storage, and what proves that they are whole.

`storage` lays out a job's folder and fences it by epochs, `manifest` names and proves the files of one snapshot,
`snapshot` says how those files find the subtasks of the next run, and `completions` remembers what was complete.

May import: `headrace.state.files`, `headrace.state.values`. Start reading at `storage`.
"""
