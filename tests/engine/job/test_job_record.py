"""What a job's record shows of others' errors.

Families: property (no text of any error shows a password).
"""

from __future__ import annotations

from control_harness import submission

from headrace.engine.job.context.record import JobRecord

TEXT = "psycopg.OperationalError: connection to postgresql://u:p4ss@host/db failed, --password p4ss"


def test_failures_and_history_show_no_passwords():
    """Errors of connectors and libraries are not ours, and mask nothing."""
    record = JobRecord(submission(), 1, None)
    record.failure = TEXT
    record.note(5, f"restarts after: {TEXT}")
    view = record.view(None, [], [])
    assert "OperationalError" in view.failure
    assert [at_ms for at_ms, _ in view.history] == [5]
    assert "p4ss" not in repr(view)
    assert "p4ss" not in "".join(record.log.story("job"))
    assert JobRecord(submission(), 2, view).failure == view.failure
