"""The phases of a job: an event comes in, commands go out, and one phase begins the next.

Each module ends with the rules of its phases (`headrace.engine.job.context.job.PhaseRules`): `preparing` chooses what
the job goes on from, `slot_requests` waits for slots, `deploying` until tasks are ready, `executing` has the job run,
take its last checkpoint and finish, `stopping` cancels tasks and pauses, `ending` delivers results and has the end
recorded. `failures` says in any of them what a failure leads to. One phase begins the next by its name
(`headrace.engine.job.context.job.Job.go`), so a module needs no other one for that.

May import: `headrace.engine.job.context` and the rooms below it. Start reading at `executing`, then `stopping`.
"""
