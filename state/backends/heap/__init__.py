"""State in the subtask's own memory, written to Arrow files for checkpoints.

May import: `headrace.state.keyed` and the rooms below it. Start reading at `backend`.
"""
