"""What functions do to variables of the main program; see ``tests/global_lists.py``. On Ray: test_failover_on_ray.py.

Families: crash (a failure in the middle), differential (one program on two actor systems).
"""

import global_lists

from headrace import StreamExecutionEnvironment


def test_a_list_of_the_program_is_copied_to_each_attempt_of_a_task(tmp_path):
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=1) as env:
        names = global_lists.check(env, tmp_path)
    assert sorted(set(names["other"][1:])) == list(range(global_lists.COUNT)), "a class is one per process"
