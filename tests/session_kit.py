"""Sessions on columns as a job runs them, and sessions as lists of values, merged one record at a time."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pyarrow as pa
from column_windows import ColumnPipeline

from headrace.engine.columns.records import MIN_TIMESTAMP, Batch
from headrace.engine.functions.aggregates import built_in as agg
from headrace.engine.functions.keys import KeySelector
from headrace.engine.windows.all_windows import OneKey
from headrace.engine.windows.assigners import EventTimeSessionWindows
from headrace.engine.windows.columnar.sessions import GlobalSessionAggregate, LocalSessionAggregate

END = 2**63 - 1
EPOCH = pa.scalar(0, pa.timestamp("ms")).as_py()
AGGREGATES = {
    "n": agg.count(),
    "total": agg.sum("v"),
    "smallest": agg.min("v"),
    "largest": agg.max("v"),
    "mean": agg.avg("v"),
    "kinds": agg.count_distinct("v"),
}


class SessionPipeline(ColumnPipeline):
    def __init__(self, gap, aggregates=AGGREGATES, *, keys=("k",), two_phase=True, parallelism=1, **options):
        assigner = EventTimeSessionWindows.with_gap(gap)
        selector = KeySelector.of_field(*keys) if keys else OneKey()
        of_pipeline = {name: options.pop(name) for name in ("parts", "anew") if name in options}
        super().__init__(
            keys,
            partial(LocalSessionAggregate, selector, assigner, aggregates) if two_phase else None,
            partial(GlobalSessionAggregate, selector, assigner, aggregates, from_records=not two_phase, **options),
            parallelism=parallelism,
            **of_pipeline,
        )


class SessionOracle:
    """Sessions as lists of values, merged one record at a time; what has changed in a batch fires behind it."""

    def __init__(self, gap, lateness=0):
        self.gap = gap
        self.lateness = lateness
        self.watermark = MIN_TIMESTAMP
        # [key, start, end, values, whether there is news]
        self.held = []
        self.late = []
        self.results = []

    def process(self, records):
        for key, value, time in records:
            start, end = time, time + self.gap
            touched = [one for one in self.held if one[0] == key and one[1] <= end and start <= one[2]]
            start, end = min([start, *(one[1] for one in touched)]), max([end, *(one[2] for one in touched)])
            if end - 1 + self.lateness <= self.watermark:
                self.late.append((key, value))
                continue
            values = [found for one in touched for found in one[3]] + [value]
            self.held = [one for one in self.held if one not in touched] + [[key, start, end, values, True]]
        self.fire()

    def advance(self, watermark):
        self.watermark = max(watermark, self.watermark)
        self.fire()
        self.held = [one for one in self.held if one[2] - 1 + self.lateness > self.watermark]

    def fire(self):
        for one in self.held:
            if one[4] and one[2] - 1 <= self.watermark:
                one[4] = False
                self.results.append(result_of(*one[:4]))


def result_of(key, start, end, values):
    known = [value for value in values if value is not None]
    return {
        "k": key,
        "start": start,
        "end": end,
        "n": len(values),
        "total": sum(known) if known else None,
        "smallest": min(known, default=None),
        "largest": max(known, default=None),
        "mean": sum(known) / len(known) if known else None,
        "kinds": len(set(known)),
    }


def epoch_ms(time):
    return round((time - EPOCH).total_seconds() * 1000)


def shown(rows):
    """Result rows in the oracle's form."""
    results = []
    for row, time in rows:
        row = {"k": None, **row}
        start, end = epoch_ms(row.pop("window_start")), epoch_ms(row.pop("window_end"))
        assert time == end - 1
        results.append({**row, "start": start, "end": end})
    return results


def counted(results):
    return Counter(
        tuple(sorted((name, round(v, 6) if isinstance(v, float) else v) for name, v in row.items())) for row in results
    )


def batch_of(records, key_type=None):
    key_type = pa.int64() if key_type is None else key_type
    columns = pa.RecordBatch.from_arrays(
        [pa.array([k for k, _, _ in records], key_type), pa.array([v for _, v, _ in records], pa.int64())],
        names=["k", "v"],
    )
    return Batch.of_columns(columns, np.array([t for _, _, t in records], np.int64))


def feed(pipeline, oracle, events):
    for event in events:
        if isinstance(event, list):
            oracle.process(event)
            if event:
                pipeline.process(batch_of(event))
        elif event > oracle.watermark:
            oracle.advance(event)
            pipeline.watermark(event)


def num_held(pipeline):
    held = [operator._held.table for operator in pipeline.subtasks]
    return sum(run.num_rows for table in held if table is not None for run in table.runs(None))
