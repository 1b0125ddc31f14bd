"""What machines say to each other, and what clients may see. Data only: no module here decides anything.

`states` of jobs and tasks, `messages` between clients and control machines, `task_messages` to and from tasks,
`checkpoint_messages` and `savepoint_messages` of their conversations, `views` for people and programs, and what a
client needs of a cluster to ask (`asks_jobs`).

May import: `headrace.engine.graph` and the rooms below it. Start reading at `messages`.
"""
