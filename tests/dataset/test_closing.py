"""Functions of data sets that fail, and fail again as they are closed: the first failure is told, the other with it."""

import pytest

from headrace import ExecutionEnvironment, MapFunction
from headrace.engine.errors import UserFunctionError
from headrace.engine.partitions.context import TaskContext
from headrace.engine.partitions.function_life import opened


class FailsToOpen(MapFunction):
    def open(self, runtime_context):
        msg = "the database refuses connections"
        raise OSError(msg)

    def map(self, value):
        return value

    def close(self):
        self.connection.close()


class FailsAtRecords(MapFunction):
    def map(self, value):
        msg = "bad record"
        raise ValueError(msg)

    def close(self):
        msg = "nothing to close"
        raise RuntimeError(msg)


class FailsToClose(MapFunction):
    def map(self, value):
        return value

    def close(self):
        msg = "nothing to close"
        raise RuntimeError(msg)


@pytest.mark.parametrize(
    ("function", "first", "second"),
    [
        (FailsToOpen, "OSError: the database refuses connections", "no attribute 'connection'"),
        (FailsAtRecords, "ValueError: bad record", "RuntimeError: nothing to close"),
    ],
)
def test_a_failure_of_close_is_a_footnote_to_the_first(function, first, second):
    env = ExecutionEnvironment.get_execution_environment("local", 1)
    with pytest.raises(UserFunctionError, match=first) as caught:
        env.from_collection([1, 2]).map(function()).collect()
    assert second in caught.value.context["on_closing"]


def test_a_failure_of_close_alone_fails_the_job():
    env = ExecutionEnvironment.get_execution_environment("local", 1)
    with pytest.raises(UserFunctionError, match="nothing to close") as caught:
        env.from_collection([1, 2]).map(FailsToClose()).collect()
    assert caught.value.context["function"] == "FailsToClose.close"
    assert "on_closing" not in caught.value.context


def test_an_error_that_is_not_of_the_tree_has_a_note():
    error = ZeroDivisionError("of the engine")
    with pytest.raises(ZeroDivisionError) as caught, opened(FailsToClose(), TaskContext("map"), "map"):
        raise error
    assert caught.value is error
    assert "nothing to close" in error.__notes__[0]


def test_a_failure_of_close_is_told_if_nobody_reads_on():
    def subtask():
        with opened(FailsToClose(), TaskContext("map"), "map") as function:
            yield function.map([1])

    running = subtask()
    assert next(running) == [1]
    with pytest.raises(UserFunctionError, match="nothing to close"):
        running.close()
