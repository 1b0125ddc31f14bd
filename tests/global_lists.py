"""A program whose function and whose class append to lists of the main program; for every actor system.

It is a script, so all of it goes by value, and it fails once in the middle.
"""

from __future__ import annotations

import os
from typing import Any

SCRIPT = """
from headrace import MapFunction

seen = ["given"]
other = ["given"]

class Collect(MapFunction):
    def map(self, value):
        other.append(value["v"])
        return {**value, "by_method": other[0]}

def collect(value):
    seen.append(value)
    if value == 150 and not os.path.exists(mark):
        open(mark, "w").close()
        raise RuntimeError("once")
    return {"v": value, "seen": len(seen), "first": seen[1]}
"""

COUNT = 400


def script(mark: Any) -> dict[str, Any]:
    """The names that it defines."""
    names: dict[str, Any] = {"__name__": "__main__", "os": os, "mark": str(mark)}
    exec(SCRIPT, names)
    return names


def check(env: Any, tmp_path: Any) -> dict[str, Any]:
    """Run it with a failure, and look at what its function has seen; gives the script's names."""
    from headrace.connectors.datagen import GeneratorSource

    names = script(tmp_path / "mark")
    method = names["Collect"].map
    env.enable_checkpointing(50, directory=str(tmp_path / "checkpoints"))
    source = GeneratorSource(lambda n: n, count=COUNT, records_per_second=800, number_of_splits=1)
    numbers = env.from_source(source, None, "numbers").set_parallelism(1)
    mapped = numbers.map(names["collect"]).set_parallelism(1)
    names["seen"].append("behind the definition")  # part of what is handed over: the program is still being built
    rows = sorted(mapped.map(names["Collect"]()).set_parallelism(1).execute_and_collect(), key=lambda row: row["v"])
    assert [row["v"] for row in rows] == list(range(COUNT)), "records are exactly once, whatever lists hold"
    assert {row["first"] for row in rows} == {"behind the definition"}
    assert {row["by_method"] for row in rows} == {"given"}
    assert rows[0]["seen"] == 3
    # Behind the failure the list began anew with what was handed over: it is no state.
    assert rows[-1]["seen"] < COUNT + 2
    assert names["seen"] == ["given", "behind the definition"], "nothing comes back to the program"
    assert names["Collect"].map is method, "nor are its classes changed"
    assert method.__globals__ is names
    return names
