"""States of a snapshot as data sets on Spark: every column type that they have, dotted names included.

Family: differential (Spark against the local executor).
"""

from __future__ import annotations

from functools import partial

import pytest
from snapshot_programs import environment, records, snapshot_of

from headrace import Snapshot, col

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory):
    """Of a job at parallelism 2 with state of every kind in RocksDB."""
    env = environment(tmp_path_factory.mktemp("states"), "rocksdb", parallelism=2)
    try:
        path, _ = snapshot_of(env, records(60))
    finally:
        env.close()
    with Snapshot.open(path) as opened:
        yield opened


@pytest.mark.parametrize(
    ("uid", "state"),
    [
        ("every kind", "count"),
        ("every kind", "account"),
        ("every kind", "anything"),
        ("every kind", "numbers"),
        ("every kind", "per digit"),
        ("every kind", "fresh"),
        ("every kind", "price"),
        ("every kind", "event-time-timers"),
        ("sums", "window-contents"),
        ("sums", "fired-window-contents"),
    ],
)
def test_a_state_is_the_same_on_both(same, snapshot, uid, state):
    same(lambda env: env.from_snapshot(snapshot, uid, state))


@pytest.mark.campaign
def test_dotted_columns_are_columns_and_rows(same, snapshot):
    accounts = partial(_accounts, snapshot)
    found = same(lambda env: accounts(env).filter(col("value.balance") > 300).select("key", "value.owner"))
    assert found
    same(lambda env: accounts(env).group_by("value.owner").max("value.balance"))
    same(lambda env: accounts(env).map(lambda row: (row["value.owner"], len(row["value.tags"]))))


def _accounts(snapshot, env):
    return env.from_snapshot(snapshot, "every kind", "account")
