"""From what Spark says of a failure to what the user should read.

A failing task of ours raises a `CarriedError`, whose text holds the pickled error between two marks; Spark wraps that
in a Python traceback, that in a Java exception, that in another. `translated` finds the marks again and gives the
original error: with the user's own traceback, the operator, the subtask and the record, and nothing of the rest.

Spark tries a failed task up to four times, which is right for a lost machine and wrong for a bug: the first attempt
leaves a note in the executor's directory, and later ones fail with it at once.
"""

from __future__ import annotations

import base64
import pickle
import re
from pathlib import Path
from typing import Any

from headrace.engine.errors import (
    ClusterUnavailableError,
    HeadraceError,
    InternalError,
    UserFunctionError,
)
from headrace.engine.partitions.solution import refuse_two_records

__all__ = ["CarriedError", "carried", "is_lost_block", "is_of_spark", "known_failure", "remember_failure", "translated"]

_OPENING, _CLOSING = "<headrace-error:", ":headrace-error>"


TWO_RECORDS = "headrace: two records of one key\1"
"""Begins what Spark raises for them; operator, superstep and records follow."""


class CarriedError(Exception):
    """An error of ours on its way through Spark."""


def carried(error: HeadraceError) -> CarriedError:
    """Return the error in a form that survives being made a text."""
    return CarriedError(f"{_OPENING}{base64.b64encode(pickle.dumps(error)).decode()}{_CLOSING}")


def remember_failure(task: Any, error: HeadraceError) -> None:
    """Leave a note for later attempts of a task in this executor."""
    note = _note(task)
    note.write_bytes(pickle.dumps(error))


def known_failure(task: Any) -> HeadraceError | None:
    """Return what an earlier attempt of a task failed with, if it was an error of ours in this executor."""
    if task.attemptNumber() == 0:
        return None
    note = _note(task)
    return pickle.loads(note.read_bytes()) if note.is_file() else None


def _note(task: Any) -> Path:
    from pyspark import SparkFiles

    return Path(SparkFiles.getRootDirectory()) / f"headrace-failed-{task.stageId()}-{task.partitionId()}"


def is_lost_block(error: BaseException) -> bool:
    """Return whether what an iteration had kept has gone with its executor, so that only a fresh start helps."""
    text = str(error)
    return "Checkpoint block" in text and "not found" in text


def is_of_spark(error: BaseException) -> bool:
    """Return whether an error comes from Spark or on the way to it; all others are what they are."""
    module = type(error).__module__.partition(".")[0]
    return module in ("py4j", "pyspark") or isinstance(error, (ConnectionError, EOFError))


def translated(error: BaseException, log: str = "") -> HeadraceError:
    """Return the error to raise in place of one of Spark's.

    Args:
        error: What PySpark raised.
        log: The end of what the driver's JVM has written, for a death without words.
    """
    text = _whole_text(error)
    found = re.search(re.escape(_OPENING) + r"([A-Za-z0-9+/=\s]+)" + re.escape(_CLOSING), text)
    if found is not None:
        original = pickle.loads(base64.b64decode(found[1]))
        assert isinstance(original, HeadraceError)
        return original
    twice = re.search(re.escape(TWO_RECORDS) + "([^\1]*)\1([0-9]*)\1([^\1]*)\1", text)
    if twice is not None:
        try:
            superstep = int(twice[2]) if twice[2] else None
            what = "initial solution set" if superstep is None else "delta"
            refuse_two_records(what, twice[1], superstep, twice[3])
        except HeadraceError as refused:
            return refused
    for mark in ("[ARITHMETIC_OVERFLOW]", "[DIVIDE_BY_ZERO]", "[NUMERIC_VALUE_OUT_OF_RANGE]", "ArithmeticException"):
        if mark in text:
            message = f"an expression failed: {_line_with(text, mark)}"
            return UserFunctionError(message)
    if type(error).__name__ in ("Py4JNetworkError", "Py4JError") or isinstance(error, (ConnectionError, EOFError)):
        message = "the driver's Java process has ended"
        return ClusterUnavailableError(f"{message}\n{log}" if log else message)
    if "ExecutorLostFailure" in text or "Lost executor" in text:
        message = f"executors were lost more often than Spark tries again: {_first_line(text)}"
        return ClusterUnavailableError(message, hint="is there enough memory on the cluster's machines?")
    if "cancelled" in text and "Job" in text:
        message = "the job was canceled"
        return ClusterUnavailableError(message)
    message = f"Spark failed: {_first_line(text)}"
    return InternalError(message, hint=_python_part(text))


def _whole_text(error: BaseException) -> str:
    parts = [str(error)]
    java = getattr(error, "java_exception", None)
    if java is not None:
        parts.append(str(java))
    if error.__cause__ is not None:
        parts.append(str(error.__cause__))
    return "\n".join(parts)


def _line_with(text: str, mark: str) -> str:
    line = next(line for line in text.splitlines() if mark in line)
    return line[line.index(mark) :].strip()[:300]


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("at ", "An error occurred while calling", ":"))]
    return (told or lines or ["no reason was given"])[0][:500]


def _python_part(text: str) -> str | None:
    """The Python traceback in a Java one, if there is any."""
    found = re.search(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\w.*\n)+", text)
    return found[0].strip()[-2_000:] if found else None
