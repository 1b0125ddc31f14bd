"""Bounded data sets: the logical plan, its optimiser, and the reference executor that runs it in process."""
