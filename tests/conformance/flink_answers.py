"""Answers of Flink, for `flink_queries`: a Python that has apache-flink, asked over its standard input.

Each line that comes is JSON: ``tables``, statements that create them anew, or ``query`` with its ``mode``. The answer
is a line with ``rows``, each with how often it is there when all changes have been applied, or with an ``error``.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import sys
from collections import Counter

from pyflink.common import RowKind
from pyflink.table import EnvironmentSettings, TableEnvironment

SETTINGS = {
    "parallelism.default": "1",
    "taskmanager.numberOfTaskSlots": "2",
    "table.local-time-zone": "UTC",
    "rest.port": "0",
}


def as_value(value: object) -> object:
    """A value as JSON: times as texts, decimals as numbers."""
    if isinstance(value, dt.datetime):
        # It comes through a number of seconds with a fraction, and may be a microsecond short.
        return (value + dt.timedelta(microseconds=500)).isoformat(timespec="milliseconds")
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("latin-1")
    return float(value) if isinstance(value, decimal.Decimal) else value


def create_anew(env: TableEnvironment, statements: list[str]) -> None:
    for statement in statements:
        env.execute_sql(f"DROP TEMPORARY TABLE IF EXISTS {statement.split()[3]}")
        env.execute_sql(statement)


def answer(env: TableEnvironment, query: str) -> dict[str, object]:
    counts: Counter[tuple[object, ...]] = Counter()
    with env.execute_sql(query).collect() as changes:
        for row in changes:
            comes = row.get_row_kind() in (RowKind.INSERT, RowKind.UPDATE_AFTER)
            counts[tuple(map(as_value, row))] += 1 if comes else -1
    return {"rows": [[list(row), count] for row, count in counts.items() if count]}


def main() -> None:
    envs = {
        "streaming": TableEnvironment.create(EnvironmentSettings.in_streaming_mode()),
        "batch": TableEnvironment.create(EnvironmentSettings.in_batch_mode()),
    }
    for env in envs.values():
        for key, value in SETTINGS.items():
            env.get_config().set(key, value)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "tables" in asked:
                for env in envs.values():
                    create_anew(env, asked["tables"])
                told: dict[str, object] = {"rows": []}
            else:
                told = answer(envs[asked["mode"]], asked["query"])
        except Exception as error:
            lines = [one.strip() for one in str(error).splitlines() if one.strip()]
            causes = [one for one in lines if "Exception" in one and "Py4J" not in one] or lines
            told = {"error": f"flink: {causes[-1][:300] if causes else type(error).__name__}"}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
