"""Delays of real flights per airport, in sliding windows of event time; the same program in three ways.

As a script on this machine::

    headrace run notebooks/delays_per_airport.py out

On a running Ray cluster, from a laptop::

    RAY_AUTH_MODE=token ray job submit --address http://HEAD:8265 --working-dir . -- python
    notebooks/delays_per_airport.py /shared/out

In Jupyter: ``01-first-job.ipynb``.
"""

import sys

from headrace import (
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    WatermarkStrategy,
    avg,
    count,
)
from headrace.connectors.files import FileSink, FileSource
from headrace.data import flights_path
from headrace.functions import max as max_of

output = sys.argv[1] if len(sys.argv) > 1 else "delays"

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
env.enable_checkpointing(1_000, directory=f"{output}.checkpoints")

flights = env.from_source(
    FileSource.parquet(flights_path()),
    WatermarkStrategy.for_bounded_out_of_orderness("22 h").with_timestamp_assigner("scheduled"),
    "flights",
)
delays = (
    flights.key_by("origin")
    .window(SlidingEventTimeWindows.of("24 h", "6 h"))
    .aggregate(flights=count(), mean_delay=avg("dep_delay"), worst_delay=max_of("dep_delay"))
)
delays.sink_to(FileSink.json_lines(output, mode="overwrite"))

result = env.execute("delays per airport")
print(f"{result.get_job_id()} finished after {result.get_net_runtime() / 1000:.1f} s; output in {output}")
