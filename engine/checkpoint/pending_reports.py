"""Collected rows that the client has not fetched, as a manifest holds them.

The JobManager keeps and stores them, and never builds what is pickled in them: that is the client's, who asked for the
rows. So rows are packed one report at a time, and one that is not plain stays `Opaque` until it has reached the client.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from headrace.state.checkpoints.manifest_schema import is_count, is_text, require
from headrace.state.identifiers import OperatorId
from headrace.state.open.values import Opaque, open_pickle, packed
from headrace.state.values.packed import decode_packed

from ..errors import CheckpointCorruptError, CheckpointMismatchError

__all__ = ["PendingReports", "read_pending_reports", "stored_reports"]

PendingReports = tuple[tuple[OperatorId, int, Any], ...]
"""Collected rows as (operator uid, subtask, (id, rows))."""


def stored_reports(reports: Iterable[tuple[OperatorId, int, Any]]) -> list[list[Any]]:
    """Return reports as JSON values.

    Raises:
        TypeMismatchError: If a row cannot be stored.
    """
    return [
        [str(operator), subtask, *(base64.b64encode(packed(part)).decode() for part in value)]
        for operator, subtask, value in reports
    ]


def read_pending_reports(stored: Any) -> PendingReports:
    """Return the inverse of `stored_reports`.

    Raises:
        CheckpointCorruptError: If it is something else.
        CheckpointMismatchError: If an earlier version has pickled rows that are not plain.
    """
    if isinstance(stored, str):
        return _of_version_1(stored)
    reports = []
    try:
        for operator, subtask, identity, rows in stored:
            require(is_text(operator) and is_count(subtask), "operator of collected rows", (operator, subtask))
            number, values = (decode_packed(base64.b64decode(part, validate=True), Opaque) for part in (identity, rows))
            hash(number)
            reports.append((OperatorId(operator), subtask, (number, values)))
    except (ValueError, TypeError) as error:
        message = f"the collected rows of a checkpoint cannot be decoded: {error!r:.200}"
        raise CheckpointCorruptError(message) from error
    return tuple(reports)


def _of_version_1(stored: str) -> PendingReports:
    """Earlier versions have pickled all reports as one."""
    try:
        reports = open_pickle(base64.b64decode(stored, validate=True))
    except ValueError as error:
        message = f"the collected rows of a checkpoint cannot be decoded: {error!r:.200}"
        raise CheckpointCorruptError(message) from error
    if isinstance(reports, Opaque):
        message = "the checkpoint holds collected rows that an earlier version has pickled, and that are not plain"
        hint = "fetch them with that version, or restore a savepoint: those hold no collected rows"
        raise CheckpointMismatchError(message, hint=hint)
    try:
        return tuple((OperatorId(operator), subtask, (value[0], value[1])) for operator, subtask, value in reports)
    except (ValueError, TypeError, IndexError, KeyError) as error:
        message = f"the collected rows of a checkpoint cannot be decoded: {error!r:.200}"
        raise CheckpointCorruptError(message) from error
