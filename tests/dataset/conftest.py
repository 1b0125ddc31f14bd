"""Environments of the local executor for the tests of data sets."""

import pytest

from headrace import ExecutionEnvironment


@pytest.fixture(params=[True, False], ids=["optimised", "as written"])
def env(request):
    return ExecutionEnvironment.get_execution_environment("local", 3, optimize=request.param)
