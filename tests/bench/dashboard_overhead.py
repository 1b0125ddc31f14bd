"""What an open dashboard costs a running job: pairs of runs with and without somebody who asks as its page does.

    python tests/bench/dashboard_overhead.py [--records 10000000] [--pairs 5] [--interval 3]

A keyed windowed count runs in this process, which also serves REST; another process asks what the graph of a job asks,
every ``--interval`` seconds (the page's own is 3). Pairs are run in turn, each in the other order than the one before.
Compared is the processor time of this process, which has the engine, the server and its answers, so that it counts
what looking costs and not what else the machine does. Measuring (rates, shares of time, queues) is on in both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

from headrace import RestSettings, StreamExecutionEnvironment, TumblingEventTimeWindows, WatermarkStrategy
from headrace.connectors.datagen import GeneratorSource

LOOKER = """
import sys, time, urllib.request
url, token, job, interval = sys.argv[1:]
paths = ["/overview", "/jobs/overview", f"/jobs/{job}", f"/jobs/{job}/watermarks", f"/jobs/{job}/checkpoints"]
number = 0
print("looks", flush=True)
while True:
    for path in paths:
        request = urllib.request.Request(url + path, headers={"Authorization": "Bearer " + token})
        try:
            urllib.request.urlopen(request).read()
        except OSError:
            sys.exit()
    time.sleep(float(interval))
"""

NUM_KEYS = 1_000


def processor_seconds(num_records: int, interval_s: float | None) -> float:
    """Of one run; with somebody who looks unless ``interval_s`` is None."""
    rest = RestSettings(bind_port="0")
    with (
        tempfile.TemporaryDirectory() as directory,
        StreamExecutionEnvironment.get_execution_environment("local", parallelism=2, rest=rest) as env,
    ):
        env.enable_checkpointing(1_000, directory=directory)
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n, _: n // 100)
        numbers = env.from_source(GeneratorSource(lambda n: n, count=num_records), strategy, "numbers")
        counted = numbers.map(lambda n: (n * 7919 % NUM_KEYS, 1)).key_by(lambda pair: pair[0])
        windows = counted.window(TumblingEventTimeWindows.of("10 s")).reduce(lambda a, b: (a[0], a[1] + b[1]))
        windows.filter(lambda _pair: False).print()
        client = env.execute_async("watched")
        (address,) = env._cluster.rest_addresses()
        looker = None
        if interval_s is not None:
            arguments = [address.url, address.tokens.read, client.get_job_id(), str(interval_s)]
            looker = subprocess.Popen([sys.executable, "-c", LOOKER, *arguments], stdout=subprocess.PIPE, text=True)
            assert looker.stdout is not None
            assert looker.stdout.readline() == "looks\n"
        began_s = time.process_time()
        client.result()
        used_s = time.process_time() - began_s
        if looker is not None:
            assert looker.poll() is None, "who looks has given up"
            looker.kill()
            looker.wait()
        return used_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--interval", type=float, default=3.0)
    options = parser.parse_args()
    print(f"{options.records:,} records, asked every {options.interval:g} s; load {os.getloadavg()[0]:.1f}")
    for interval in (None, options.interval):
        processor_seconds(10_000, interval)  # what is loaded once is loaded
    ratios = []
    for pair in range(options.pairs):
        intervals = [None, options.interval] if pair % 2 else [options.interval, None]
        used = {interval: processor_seconds(options.records, interval) for interval in intervals}
        ratios.append(used[options.interval] / used[None])
        print(f"without {used[None]:6.2f} s of processor time, with {used[options.interval]:6.2f} s: {ratios[-1]:.4f}")
    ratio = statistics.median(ratios)
    print(f"median ratio {ratio:.4f}: throughput falls by {100 * (1 - 1 / ratio):.1f} %")


if __name__ == "__main__":
    main()
