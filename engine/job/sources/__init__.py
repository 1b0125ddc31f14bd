"""The sources of a job as its JobManager sees them: their enumerators, what they found, and how far they have read.

May import: the rooms below `headrace.engine.job`, and none of its modules. Start reading at `source_coordinator`.
"""
