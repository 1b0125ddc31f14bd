"""A job on Ray whose load doubles and then falls, and which is rescaled by itself: backlog, slots and output over time.

Records arrive by the clock, on a schedule, and each costs a function 20 ms of waiting, as a call to a service would: a
slot can do fifty a second at most, and more slots help on a machine of any number of cores. What was written is
compared with a direct computation: each record once, the records of a key in order. The exit status says so.

``python tests/bench/autoscaling.py [--picture docs/pictures/autoscaling.svg] [--pace 1.0]``: three minutes. ``--nodes``
runs it on a Ray that has no node for it: Ray's own autoscaler launches nodes of two cores (processes of this machine,
by the provider that Ray is tested with) as the job asks for slots, and takes them back as it gives slots back.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from actors.autoscaling import is_served, num_workers, scaling_cluster, wait_for

from headrace import AutoscalerSettings, KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from headrace.connectors.files import FileSink
from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    NOTHING_NOW,
    Discovery,
    Polled,
    Split,
    SplitFinished,
)

COST_S = 0.02
NUM_SPLITS = 8
NUM_KEYS = 64
PHASES = ((40, 40), (60, 80), (70, 15))
"""(seconds, records a second)."""

SETTINGS = AutoscalerSettings(
    metrics_window_ms=6_000,
    stabilization_interval_ms=4_000,
    scale_up_grace_period_ms=15_000,
    scale_down_interval_ms=10_000,
    catch_up_duration_ms=20_000,
    restart_time_ms=3_000,
    lag_threshold_ms=5_000,
    control_loop_interval_ms=1_000,
    vertex_max_parallelism=6,
)


def schedule(pace: float) -> list[float]:
    """When each record arrives, seconds from the beginning."""
    times: list[float] = []
    began = 0.0
    for seconds, rate in PHASES:
        times += [began + pace * number / rate for number in range(seconds * rate)]
        began += pace * seconds
    return times


@dataclass
class Arriving:
    """Records that are there once their time has come. It begins when the first reader is there."""

    began: str
    pace: float
    is_bounded = True
    discovery_interval_ms = None
    times: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.times = schedule(self.pace)

    def create_enumerator(self, _context: Any) -> Arriving:
        return self

    def discover(self) -> Discovery:
        splits = [Split(f"split-{i}", {"index": i}, is_bounded=False) for i in range(NUM_SPLITS)]
        return Discovery(splits, is_final=True)

    def create_reader(self) -> Reader:
        return Reader(self)


class Reader:
    """Reads its splits in turn; the position is the number of records given."""

    def __init__(self, source: Arriving) -> None:
        self._source = source
        self._splits: list[tuple[Split, int]] = []

    def open(self, context: Any) -> None:
        try:
            with open(self._source.began, "x") as file:
                file.write(str(time.time()))
        except FileExistsError:
            pass
        context.metrics.gauge("pending_records", self._pending)

    def _now(self) -> float:
        return time.time() - float(Path(self._source.began).read_text() or time.time())

    def _arrived(self, split: Split) -> int:
        """How many records of a split have."""
        now = self._now()
        return sum(1 for at in self._source.times[split.payload["index"] :: NUM_SPLITS] if at <= now)

    def _pending(self) -> int:
        return sum(self._arrived(split) - position for split, position in self._splits)

    def add_splits(self, splits: list[Split]) -> None:
        self._splits += [(split, split.position or 0) for split in splits]

    def poll(self, max_records: int) -> Any:
        if not self._splits:
            return ALL_SPLITS_FINISHED
        for _ in range(len(self._splits)):
            split, position = self._splits.pop(0)
            index = split.payload["index"]
            if position >= len(self._source.times[index::NUM_SPLITS]):
                return SplitFinished(split.split_id)
            end = min(self._arrived(split), position + max_records)
            self._splits.append((split, end))
            if end > position:
                numbers = (index + place * NUM_SPLITS for place in range(position, end))
                rows = [{"key": number % NUM_KEYS, "number": number} for number in numbers]
                return Polled(split.split_id, Batch.of_rows(rows))
        return NOTHING_NOW

    def next_poll_ms(self) -> int | None:
        return None

    def snapshot(self) -> list[Split]:
        return [replace(split, position=position) for split, position in self._splits]

    def close(self) -> None:
        """Nothing to close."""


class CallsAService(KeyedProcessFunction):
    """Numbers the records of each key, and waits for each."""

    def open(self, context: Any) -> None:
        self._count = context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, _context: Any) -> Any:
        time.sleep(COST_S)
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield {"key": value["key"], "number": value["number"], "count": count}


@dataclass
class Sample:
    """What was seen at a moment; the backlog is of what has arrived and is not in the output."""

    at_s: float
    arrived: int
    committed: int
    slots: int
    nodes: int

    @property
    def backlog(self) -> int:
        return self.arrived - self.committed


def rows_in(folder: Path) -> list[dict[str, int]]:
    """What a reader of the output sees."""
    return [json.loads(line) for part in folder.glob("part-*") for line in part.read_text().splitlines()]


def follow(client: Any, folder: Path, began: Path, pace: float) -> list[Sample]:
    """Look once a second until the job has ended."""
    times, samples, seen = schedule(pace), [], {}
    for view in client.views():
        is_over = view.ended_ms is not None
        at = time.time() - float(began.read_text()) if began.exists() and began.stat().st_size else 0.0
        if not is_over and samples and at < samples[-1].at_s + 1:
            continue
        for part in folder.glob("part-*"):
            if part.name not in seen:  # one that can be seen is never changed
                seen[part.name] = len(part.read_text().splitlines())
        slots = max((vertex.parallelism for vertex in view.vertices), default=0)
        arrived = sum(1 for one in times if one <= at)
        sample = Sample(at, arrived, sum(seen.values()), slots, num_workers())
        samples.append(sample)
        if len(samples) % 5 == 0:
            print(
                f"{sample.at_s:6.0f} s  {sample.nodes} nodes  {sample.slots} slots  backlog {sample.backlog:5}  "
                f"{view.autoscaler}",
                flush=True,
            )
    return samples


# --------------------------------------------------------------------------------------------------------- the picture
WIDTH, PANEL, LEFT, GAP = 760, 110, 64, 34


def picture(samples: list[Sample], pace: float) -> str:
    """Three curves over time, as SVG: records a second in and out, backlog, slots."""
    end = samples[-1].at_s
    rates = [(one.at_s, float(rate_at(one.at_s, pace))) for one in samples]
    output = [
        (one.at_s, (one.committed - before.committed) / max(one.at_s - before.at_s, 0.1))
        for before, one in zip(samples, samples[5:], strict=False)
    ]
    panels: tuple[tuple[str, Any], ...] = (
        ("records a second: in (grey) and out, mean of 5 s", (("#999", rates), ("#1f6fb4", output))),
        ("records that have arrived and are not in the output", (("#c0392b", [(s.at_s, s.backlog) for s in samples]),)),
        ("slots", (("#2e8b57", [(s.at_s, s.slots) for s in samples]),)),
        *(
            (("nodes", (("#8e44ad", [(s.at_s, s.nodes) for s in samples]),)),)
            if max(one.nodes for one in samples) > 1
            else ()
        ),
    )
    height = len(panels) * (PANEL + GAP) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, (title, curves) in enumerate(panels):
        top = number * (PANEL + GAP) + 22
        most = max((value for _, curve in curves for _, value in curve), default=1.0) or 1.0
        parts += [
            f'<text x="{LEFT}" y="{top - 6}" fill="#222">{title}</text>',
            f'<rect x="{LEFT}" y="{top}" width="{WIDTH - LEFT - 16}" height="{PANEL}" fill="none" stroke="#ccc"/>',
            f'<text x="{LEFT - 6}" y="{top + 10}" text-anchor="end" fill="#555">{most:,.0f}</text>',
            f'<text x="{LEFT - 6}" y="{top + PANEL}" text-anchor="end" fill="#555">0</text>',
        ]
        for colour, curve in curves:
            points = " ".join(
                f"{LEFT + (WIDTH - LEFT - 16) * at / end:.1f},{top + PANEL * (1 - value / most):.1f}"
                for at, value in curve
            )
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
    for at in range(0, int(end) + 1, 20):
        x = LEFT + (WIDTH - LEFT - 16) * at / end
        parts.append(f'<text x="{x:.1f}" y="{height - 12}" text-anchor="middle" fill="#555">{at} s</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def rate_at(at_s: float, pace: float) -> float:
    """Records a second that arrive at a moment."""
    for seconds, rate in PHASES:
        at_s -= pace * seconds
        if at_s < 0:
            return rate / pace
    return 0.0


# ----------------------------------------------------------------------------------------------------------------- run
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", metavar="FILE", help="where the picture goes")
    parser.add_argument("--pace", type=float, default=1.0, help="how much slower than written it goes")
    parser.add_argument("--nodes", action="store_true", help="on nodes that are launched for the job")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, cluster(grows=options.nodes) as address:
        return run(Path(folder), address, options.pace, options.picture)


@contextlib.contextmanager
def cluster(*, grows: bool) -> Iterator[str]:
    """The address of a Ray of this machine's own, or of one that launches its nodes."""
    if not grows:
        yield "local"
        return
    import ray

    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # all on the loopback
    with scaling_cluster() as address:
        wait_for("cluster", lambda: is_served(address))
        try:
            yield address
        finally:
            ray.shutdown()  # or this process would wait for a cluster that has gone


def run(folder: Path, address: str, pace: float, place: str | None) -> int:
    env = StreamExecutionEnvironment.get_execution_environment(
        "ray",
        address=address,
        parallelism=1,
        slots_per_task_manager=1,
        slot_request_timeout_ms=180_000,
        max_batch_rows=8,
    )
    env.enable_checkpointing(1_000, directory=folder / "checkpoints")
    # What is launched has four cores at most: a wish for more would be refused.
    env.set_autoscaler(SETTINGS if address == "local" else replace(SETTINGS, vertex_max_parallelism=4))
    env.from_source(Arriving(str(folder / "began"), pace), source_name="arriving").key_by(
        lambda row: row["key"]
    ).process(CallsAService()).name("calls a service").sink_to(FileSink.json_lines(folder / "out"))
    with env:
        client = env.execute_async("autoscaled")
        samples = follow(client, folder / "out", folder / "began", pace)
        view = client.view()
    for rescale in view.rescales:
        took = "" if rescale.ended_ms is None else f" in {(rescale.ended_ms - rescale.at_ms) / 1_000:.1f} s"
        before, after = max(rescale.before.values()), max(rescale.after.values())
        print(f"{before} -> {after}{took} {rescale.error or 'done'}: {rescale.reason}")
    numbers = range(len(schedule(pace)))
    expected = Counter((number % NUM_KEYS, number, number // NUM_KEYS + 1) for number in numbers)
    got = Counter((row["key"], row["number"], row["count"]) for row in rows_in(folder / "out"))
    print(
        f"{view.state}: {sum(got.values()):,} rows, {view.num_restarts} restarts, "
        f"{view.checkpoints_completed} checkpoints"
    )
    print(f"lost {sum((expected - got).values())}, doubled or wrong {sum((got - expected).values())}")
    print(f"largest backlog {max(one.backlog for one in samples)}; slots {min(s.slots for s in samples[2:])} to "
          f"{max(one.slots for one in samples)}, {samples[-1].slots} at the end")  # fmt: skip
    nodes = [one.nodes for one in samples]
    print(f"nodes over time: {', '.join(str(number) for number, _ in itertools.groupby(nodes))}")
    if place is not None:
        Path(place).write_text(picture(samples, pace), encoding="utf-8")
        print(f"picture: {place}")
    grew_and_shrank = address == "local" or nodes[-1] < max(nodes)
    return 0 if got == expected and view.state == "FINISHED" and grew_and_shrank else 1


if __name__ == "__main__":
    os.environ.setdefault("RAY_worker_niceness", "0")
    sys.exit(main())
