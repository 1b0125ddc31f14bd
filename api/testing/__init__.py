"""Tests of functions and programs, without a cluster and without waiting; for plain pytest or any other tool.

Several sizes, one vocabulary:

* a *function* or operator: `OneInputTestHarness`, `KeyedOneInputTestHarness`, `TwoInputTestHarness`,
  `BroadcastTestHarness`: one subtask, driven by hand;
* a *program* of several operators: `PipelineTestHarness`: the same under a manual clock, at any parallelism;
* a *sink* of your own: `SinkTestHarness`, and in `headrace.testing.sink_contract` the checks that every exactly-once
  sink must pass, in `headrace.testing.upsert_contract` those of sinks that write by key;
* a *source* of your own: `SourceTestHarness`, and the checks in `headrace.testing.source_contract` and
  `headrace.testing.acknowledging_contract`;
* a *job* with faults: `run_simulated`: a whole simulated cluster whose processes die.

`ScriptedSource` is a source for tests of all kinds: it plays records, `Pause`, `Fail` and watermarks.

Examples:
    >>> from headrace.testing import OneInputTestHarness
    >>> with OneInputTestHarness(lambda line: line.strip()) as harness:
    ...     harness.process_element(" a line ")
    ...     harness.extract_output_values()
    ['a line']

May import: `headrace.stream`, `headrace.connectors`, `headrace.jobs`, `headrace.arguments`, `headrace.engine`,
`headrace.state`; the simulator in `simulated` only, inside functions. Start reading at `operators.harness`, then
`pipelines.harness`.
"""

from __future__ import annotations

from ..connectors.scripted import Fail, Pause, ScriptedSource, Timed, Watermark
from .operators.function_harnesses import (
    BroadcastTestHarness,
    KeyedOneInputTestHarness,
    OneInputTestHarness,
    TwoInputTestHarness,
)
from .operators.harness import StreamRecord
from .operators.operator_harness import OperatorSnapshotParts, OperatorTestHarness
from .pipelines.harness import PipelineSnapshot, PipelineTestHarness
from .simulated import SimulatedRun, run_simulated
from .sinks.harness import SinkAttempt, SinkTestHarness
from .sources.harness import SourceTestHarness

__all__ = [
    "BroadcastTestHarness",
    "Fail",
    "KeyedOneInputTestHarness",
    "OneInputTestHarness",
    "OperatorSnapshotParts",
    "OperatorTestHarness",
    "Pause",
    "PipelineSnapshot",
    "PipelineTestHarness",
    "ScriptedSource",
    "SimulatedRun",
    "SinkAttempt",
    "SinkTestHarness",
    "SourceTestHarness",
    "StreamRecord",
    "Timed",
    "TwoInputTestHarness",
    "Watermark",
    "run_simulated",
]
