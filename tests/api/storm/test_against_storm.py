"""The same programs, on Storm's own library, under Storm and here.

Risks and families: a protocol of our own that only our own programs speak (oracle: Storm 2.8.3, its ``LocalCluster``,
its ``storm.py``), programs in the shape of pystorm that are called otherwise.
"""

from __future__ import annotations

from collections import Counter

import pytest
from storm_server import storm_server  # noqa: F401 - a fixture

from headrace import StreamExecutionEnvironment
from headrace.storm import Fields, ShellBolt, TopologyBuilder

pytestmark = [pytest.mark.lane("storm"), pytest.mark.timeout(600)]

LINES = [f"the cow {n % 7} jumped over the moon {n % 11}" for n in range(300)]


@pytest.mark.slow
def test_programs_on_storms_library_give_what_they_give_under_storm(storm_server):  # noqa: F811
    resources = storm_server.resources
    builder = TopologyBuilder()
    with StreamExecutionEnvironment.get_execution_environment("local") as env:
        builder.set_spout("lines", env.from_collection(LINES), outputs=["line"])
        split = ShellBolt("python3", "storm_split.py", outputs=["word"], resources=resources)
        builder.set_bolt("split", split, 2).shuffle_grouping("lines")
        count = ShellBolt("python3", "storm_count.py", outputs=["word", "count"], resources=resources)
        builder.set_bolt("count", count, 2).fields_grouping("split", Fields("word"))
        counted = builder.create_topology(env).stream("count")
        ours = Counter((row["word"], row["count"]) for row in counted.execute_and_collect())
    words = Counter(word for line in LINES for word in line.split())
    assert ours == Counter((word, n) for word, total in words.items() for n in range(1, total + 1))
    assert ours == storm_server.counted(LINES)
