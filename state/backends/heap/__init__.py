"""State in the subtask's own memory, written to Arrow files for checkpoints. Start reading at `backend`."""
