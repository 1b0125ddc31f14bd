"""The checkpoint coordinator: when a checkpoint is triggered, when it is complete, which ones stay.

`restore_choice` decides what a job goes on from, `restore_check` tries a restore on paper, `garbage` is what is
deleted, `io` the work that is done in the store off the machine's turn.

May import: `headrace.engine.autoscaler` and the rooms below it. Start reading at `coordinator`.
"""
