"""Where checkpoints, savepoints, jobs and leases lie on durable storage, and what proves that they are whole.

`storage` lays out a job's folder and fences it by epochs; `data_files` writes and checks what is in it, `manifest`
names and proves the files of one snapshot, and `completions` remembers what was complete. `snapshot` is what tasks say
of theirs, and `assignment` how its files find the subtasks of the next run.

May import: `headrace.state.files`, `headrace.state.keys` and the rooms below them. Start reading at `storage`.
"""
