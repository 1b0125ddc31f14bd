"""The words of a text and how often each is there: a data set, on Spark in Ray or in this process.

On Spark, inside the Ray cluster that is found or else started (needs ``headrace[spark]``, no Java)::

    headrace run notebooks/word_count.py

In this process, within a second::

    headrace run --executor local notebooks/word_count.py

Texts of your own, as files, folders or patterns::

    headrace run notebooks/word_count.py FILE ...
"""

import re
import sys
from pathlib import Path

from headrace import ExecutionEnvironment, count

texts = sys.argv[1:] or [Path(__file__).resolve().parent.parent / "LICENSE"]

with ExecutionEnvironment.get_execution_environment() as env:
    words = (
        env.read_text(texts)
        .flat_map(lambda line: [(word,) for word in re.findall(r"[a-z']+", line.lower())], output_type=tuple[str])
        .group_by(0)
        .aggregate(times=count())
    )
    counted = words.sort("times", "f0", ascending=[False, True]).collect()

for row in counted[:10]:
    print(f"{row['times']:7,}  {row['f0']}")
print(f"{sum(row['times'] for row in counted):7,}  words, {len(counted):,} different ones")
