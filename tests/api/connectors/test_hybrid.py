"""Several sources read one after another, through the public interface and, reader by reader, on a clock by hand.

Families: property (one run, a stop and a restore at another parallelism, and every record once, in the order of the
sources), what either half hands on of what its sources can do, refusals. Faults are in
``tests/simulation/test_hybrids.py``.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from source_harness import MONOTONOUS, Harness, ListReader, ListSource

from headrace import (
    CheckpointMismatchError,
    ConfigurationError,
    Discovery,
    EnumeratorProgress,
    JobFailedError,
    ListStateDescriptor,
    ProgramError,
    RocksDBStateBackend,
    SourceEvent,
    Split,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink, FileSource
from headrace.connectors.hybrid import HybridSource
from headrace.connectors.hybrid.splits import AddressedEvent, ChainedSource, wrapped
from headrace.connectors.scripted import ScriptedSource, Timed
from headrace.engine.connectors.contract import NOTHING_NOW, EnumeratorContext
from headrace.engine.connectors.sources import PollResult

TIMED = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n, _: n)


def environment(parallelism=3, backend="heap", **options):
    made = StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism, **options)
    return made.set_state_backend(backend)


def files_of(folder, *contents):
    folder.mkdir()
    for index, rows in enumerate(contents):
        (folder / f"day-{index}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return FileSource.json_lines(folder)


def rows_in(folder):
    return [json.loads(line) for path in sorted(Path(folder).glob("part-*")) for line in path.read_text().splitlines()]


class GatedSource:
    """Another source, of which each reader gives a few records, and the rest when a file is there."""

    is_bounded = True

    def __init__(self, source, gate):
        self.source, self.gate = source, gate

    def create_enumerator(self, context):
        return self.source.create_enumerator(context)

    def create_reader(self):
        return GatedReader(self.source.create_reader(), self.gate)


class GatedReader:
    def __init__(self, reader, gate):
        self.reader, self.gate, self.has_given = reader, gate, False

    def __getattr__(self, name):
        return getattr(self.reader, name)

    def poll(self, max_records):
        if self.has_given and not self.gate.exists():
            return NOTHING_NOW
        self.has_given = True
        return self.reader.poll(min(max_records, 5))


# ---------------------------------------------------------------------------------------------------------- whole jobs
@pytest.mark.parametrize("parallelism", [1, 3])
def test_history_is_read_before_what_its_end_position_leads_to(tmp_path, parallelism):
    history = files_of(tmp_path / "days", [1, 2, 3], [4, 5])

    def live(context):
        day = Path(context.end_position["last_path"]).stem
        return GeneratorSource(lambda i: [day, context.source_index, i], count=4)

    source = HybridSource.builder(history).add_source(live, is_bounded=True).build()
    rows = list(environment(parallelism).from_source(source, None, "hybrid").execute_and_collect())
    assert Counter(map(str, rows)) == Counter(map(str, [1, 2, 3, 4, 5, *(["day-1", 1, i] for i in range(4))]))
    if parallelism == 1:
        assert rows[:5] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
def test_a_job_stopped_behind_a_switch_goes_on_in_the_same_source_at_another_parallelism(
    tmp_path, backend, before, after
):
    history, gate = files_of(tmp_path / "days", list(range(100))), tmp_path / "gate"

    def live(context):
        first = 100 + len(context.end_position["last_path"].partition("day-")[2])  # "0.jsonl": from 107 on
        return GatedSource(GeneratorSource(lambda i: first + i, count=400), gate)

    def build(parallelism):
        state = backend if backend == "heap" else RocksDBStateBackend(16 << 20, str(tmp_path / "db"))
        env = environment(parallelism, state, metrics_interval_ms=20)
        env.enable_checkpointing(50, directory=tmp_path / "checkpoints")
        source = HybridSource.builder(history).add_source(live, is_bounded=True).build()
        stream = env.from_source(source, TIMED, "hybrid").uid("hybrid")
        windows = stream.key_by(lambda n: n % 2).window(TumblingEventTimeWindows.of(10)).reduce(lambda a, b: a + b)
        windows.uid("sums").sink_to(FileSink.json_lines(tmp_path / "out", mode="append")).uid("out")
        return env

    env = build(before)
    client = env.execute_async("first")
    for view in client.views():
        if view.vertices and view.vertices[0].records_in > 100:
            break
    savepoint = client.stop_with_savepoint(tmp_path / "savepoints")
    env.close()
    gate.touch()
    env = build(after)
    env.execute("second", from_savepoint=savepoint)
    env.close()
    numbers = [*range(100), *range(107, 507)]
    sums = Counter()
    for n in numbers:
        sums[n // 10, n % 2] += n
    assert Counter(rows_in(tmp_path / "out")) == Counter(sums.values())


def test_a_chain_of_bounded_sources_is_a_batch_and_three_are_read_in_turn():
    chain = HybridSource.builder(ScriptedSource([1, 2])).add_source(GeneratorSource(lambda i: 10 + i, count=0))
    chain = chain.add_source(ScriptedSource([20], [21])).build()
    assert chain.is_bounded
    env = environment(2, max_batch_rows=1)
    rows = list(env.from_source(chain, None, "hybrid").execute_and_collect())
    assert sorted(rows[:2]) == [1, 2]
    assert sorted(rows) == [1, 2, 20, 21]


@pytest.mark.parametrize("is_made_late", [False, True])
def test_a_chain_may_be_a_source_of_a_chain(tmp_path, is_made_late):
    def pair(first, second):
        return HybridSource.builder(GatedSource(span(*first), gate)).add_source(span(*second)).build()

    def span(start, end):
        return GeneratorSource(lambda i: start + i, count=end - start)

    gate = tmp_path / "gate"
    later = (lambda _: pair((70, 90), (90, 100))) if is_made_late else pair((70, 90), (90, 100))
    chain = HybridSource.builder(pair((0, 40), (40, 70))).add_source(later, is_bounded=True).build()

    def started(parallelism, **options):
        env = environment(parallelism, metrics_interval_ms=20)
        env.enable_checkpointing(20, directory=tmp_path / "checkpoints")
        env.from_source(chain, None, "chain").uid("chain").sink_to(FileSink.json_lines(tmp_path / "out")).uid("out")
        return env.execute_async("job", **options)

    first = started(3)
    for view in first.views():
        if view.vertices and view.vertices[0].records_in > 0:
            break
    path = first.stop_with_savepoint(tmp_path / "savepoints")
    gate.touch()
    started(2, from_savepoint=path).result()
    assert sorted(rows_in(tmp_path / "out")) == list(range(100))


def test_the_end_of_a_source_is_not_the_end_of_time_and_nobody_runs_ahead():
    first = ScriptedSource([Timed("a", 10), Timed("b", 20)], [Timed("c", 5)], [Timed("d", 30)])
    then = ScriptedSource([Timed("e", 31), Timed("f", 45)])
    source = HybridSource.builder(first).add_source(then).build()
    env = environment(4, max_batch_rows=1)
    stream = env.from_source(source, WatermarkStrategy.for_monotonous_timestamps(), "hybrid")
    windows = stream.map(lambda row: ("k", row)).key_by(0).window(TumblingEventTimeWindows.of(10))
    results = windows.apply(lambda key, window, rows: [(window.start, sorted(row for _, row in rows))])
    assert sorted(results.execute_and_collect()) == [
        (0, ["c"]), (10, ["a"]), (20, ["b"]), (30, ["d", "e"]), (40, ["f"]),
    ]  # fmt: skip


def test_a_factory_that_fails_or_lies_fails_the_job():
    def fail(_context):
        message = "no such topic"
        raise ValueError(message)

    for factory, text in (
        (fail, "factory of source 1.*no such topic"),
        (lambda _context: ScriptedSource([1], is_bounded=False), "is_bounded=False"),
        (lambda _context: 7, "got 7"),
    ):
        source = HybridSource.builder(ScriptedSource([1])).add_source(factory, is_bounded=True).build()
        with pytest.raises(JobFailedError, match=text):
            list(environment(1).from_source(source, None, "hybrid").execute_and_collect())


def test_a_chain_that_could_not_be_read_is_refused_where_it_is_written():
    endless, once = ScriptedSource([1], is_bounded=False), ScriptedSource([1])
    with pytest.raises(ConfigurationError, match="source 1 of a hybrid source would never begin"):
        HybridSource.builder(endless).add_source(once)
    with pytest.raises(ConfigurationError, match="is_bounded must say"):
        HybridSource.builder(once).add_source(lambda context: endless)
    with pytest.raises(ConfigurationError, match="says is_bounded=True itself"):
        HybridSource.builder(once).add_source(once, is_bounded=False)
    with pytest.raises(ConfigurationError, match="source 0 of a hybrid source must be a source"):
        HybridSource.builder(lambda context: once)
    with pytest.raises(ProgramError, match="source 1 of a hybrid source"):
        HybridSource.builder(once).add_source(type("Odd", (ScriptedSource,), {"create_reader": lambda self: 7})([1]))


# ----------------------------------------------------------------------------------------------------------- one reader
class Listening(ListReader):
    """Hears of checkpoints and events, has state, can leave out splits."""

    def __init__(self, source):
        super().__init__(source)
        self.heard, self.paused = [], frozenset()

    def initialize_state(self, context):
        self.count = context.get_operator_state_store().get_list_state(ListStateDescriptor("count"))
        self.heard.append(list(self.count.get()))

    def snapshot_state(self, context):
        self.count.update([self.source.name])

    def notify_checkpoint_complete(self, checkpoint_id):
        self.heard.append(checkpoint_id)

    def handle_source_event(self, event):
        self.heard.append(event)
        self.context.send_source_event(event.upper())

    def pause_splits(self, split_ids):
        self.paused = split_ids


class ListeningSource(ListSource):
    def __init__(self, name):
        super().__init__()
        self.name = name

    def create_reader(self):
        self.readers.append(Listening(self))
        return self.readers[-1]


def harness_of(*sources, **options):
    chain = [ChainedSource(source, None, source.is_bounded) for source in sources]
    return Harness(HybridSource(chain), **options)


def give(harness, index, split_id, *rows, end_position=None):
    harness.operator.split_requested()
    harness.operator.add_splits([wrapped(Split(split_id, {"rows": list(rows)}), index, end_position, is_bounded=True)])


def test_splits_of_a_later_source_wait_for_those_of_earlier_ones_and_are_in_snapshots():
    harness = harness_of(ListSource(), ListSource())
    give(harness, 0, "a", 1, 2, 3)
    give(harness, 1, "x", 7, 8)
    harness.poll(1)
    assert harness.output.rows == [1]
    restored = harness_of(ListSource(), ListSource(), parts=harness.snapshot())
    while restored.operator._trackers:
        restored.poll(1)
    assert restored.output.rows == [2, 3, 7, 8]
    assert restored.output.watermarks == [6, 7]  # what waits for its turn holds event time
    give(restored, 1, "y", 9)
    give(restored, 0, "b", 4)  # a reader that was set back, and has begun the next source
    restored.poll(1)
    assert restored.output.rows[-1] == 4


def test_a_reader_without_split_at_the_switch_is_idle_only_if_the_strategy_says_so():
    unbounded = ListSource(is_bounded=False)
    harness = harness_of(ListSource(), unbounded, strategy=MONOTONOUS.with_idleness("10 ms"))
    give(harness, 0, "a", 5)
    while harness.poll() is PollResult.MORE:
        pass
    assert harness.output.statuses == []
    harness.now_ms = 50
    harness.poll()
    assert harness.output.statuses == [True]
    give(harness, 1, "x", 9)
    harness.poll()
    assert harness.output.statuses == [True, False]
    assert harness.output.watermarks == [4, 8]
    quiet = harness_of(ListSource(), unbounded)
    give(quiet, 0, "a", 5)
    for quiet.now_ms in (0, 1, 1_000_000):
        quiet.poll()
    assert quiet.output.statuses == []


def test_readers_hear_what_is_theirs_and_a_finished_one_until_a_checkpoint_is_behind_it():
    first, second = ListeningSource("first"), ListeningSource("second")
    harness = harness_of(first, second)
    sent = []
    harness.operator._opened()._context.send_source_event = sent.append
    give(harness, 0, "a", 1)
    give(harness, 0, "b", 2)
    harness.operator._opened().pause_splits(frozenset({"0:b", "1:b"}))
    [reader] = first.readers
    assert reader.paused == {"b"}
    harness.operator.handle_source_event(AddressedEvent(0, None, "hello"))
    assert sent == [AddressedEvent(0, None, "HELLO")]
    harness.operator._opened().pause_splits(frozenset())
    for _ in range(4):
        harness.poll()
    harness.operator.take_snapshot(1)
    give(harness, 1, "x", 3)
    harness.operator.checkpoint_ended(1, is_complete=True)
    assert not reader.is_closed
    harness.operator.take_snapshot(2)
    harness.operator.checkpoint_ended(2, is_complete=True)
    assert reader.is_closed
    assert reader.heard == [[], "hello", 1, 2]
    assert second.readers[-1].heard == [[], 1, 2]
    parts = harness.snapshot()
    again = ListeningSource("second")
    harness_of(ListeningSource("first"), again, parts=parts)
    assert again.readers[-1].heard == [["second"]]


def test_a_reader_that_cannot_leave_out_splits_is_left_out_when_all_its_splits_are():
    harness = harness_of(ListSource())
    give(harness, 0, "a", 1)
    give(harness, 0, "b", 2)
    reader = harness.operator._opened()
    reader.pause_splits(frozenset({"0:a", "0:b"}))
    assert harness.poll() is PollResult.NOTHING
    reader.pause_splits(frozenset({"0:a"}))
    assert harness.poll() is PollResult.MORE
    assert harness.output.rows == [1]


# ------------------------------------------------------------------------------------------------------ one enumerator
class Telling:
    """Says as its state how often it was asked; hears of events."""

    is_bounded = True
    discovery_interval_ms = 70

    def create_enumerator(self, context):
        return self

    def create_reader(self):
        return ListReader(ListSource())

    def discover(self):
        raise NotImplementedError

    def discover_from(self, progress):
        looks = (progress.state or (0,))[0] + 1
        return Discovery([Split(f"s{looks}")], is_final=looks == 2, state=(looks,))

    def handle_source_event(self, subtask, event, progress):
        return Discovery([], False, state=(progress.state[0], event), events=(SourceEvent("yes", subtask),))


def test_how_far_the_chain_has_come_is_what_the_enumerator_says():
    source = HybridSource.builder(Telling()).add_source(lambda context: Telling(), is_bounded=True).build()
    state, ids = None, []
    for is_exhausted in (True, False, False, True):
        enumerator = source.create_enumerator(EnumeratorContext(1))  # the new leader goes on
        found = enumerator.discover_from(EnumeratorProgress(state, is_exhausted, 2, has_found=state is not None))
        state = json.loads(json.dumps(found.state))
        ids.append(([split.split_id for split in found.splits], enumerator.discovery_interval_ms, found.continues))
    assert ids == [(["0:s1"], 70, False), (["0:s2"], None, True), ([], None, True), (["1:s1"], 70, False)]
    assert state["sources"][1]["end_position"] == [2]
    late = enumerator.handle_source_event(1, AddressedEvent(0, None, "late"), EnumeratorProgress(state, False, 2))
    assert late.state["sources"][0]["state"] == (2, "late")
    assert late.events == (SourceEvent(AddressedEvent(0, None, "yes"), 1),)


def test_checkpoints_of_another_source_or_of_a_longer_chain_are_refused():
    short = HybridSource.builder(Telling()).build().create_enumerator(EnumeratorContext(1))
    with pytest.raises(CheckpointMismatchError, match="was not hybrid"):
        short.discover_from(EnumeratorProgress(None, False, 1, has_found=True))
    begun = [{"end_position": None, "state": None, "is_final": True, "has_found": True}] * 2
    with pytest.raises(CheckpointMismatchError, match="at least 2 sources"):
        short.discover_from(EnumeratorProgress({"sources": begun}, False, 1))
    with pytest.raises(CheckpointMismatchError, match="cannot be read"):
        short.discover_from(EnumeratorProgress({"looks": 3}, False, 1))
    reader = HybridSource.builder(ListSource()).build()
    with pytest.raises(CheckpointMismatchError, match="was not hybrid"):
        Harness(reader).add("plain", 1)


@pytest.mark.parametrize("index", [-1, True, "0", 1.0, None, 1, 2**70])
def test_a_split_of_no_source_of_the_chain_is_refused(index):
    reader = HybridSource.builder(ListSource()).add_source(ListSource()).build()
    payload = {"source": index, "end_position": None, "payload": {}}
    with pytest.raises(CheckpointMismatchError, match="cannot be one of source"):
        Harness(reader).operator.add_splits([Split("0:plain", payload)])


def test_an_end_position_that_cannot_be_stored_is_refused():
    source = HybridSource.builder(ScriptedSource([1])).add_source(lambda context: Telling(), is_bounded=True).build()
    enumerator = source.create_enumerator(EnumeratorContext(1))
    begun = [{"end_position": None, "state": {1, 2}, "is_final": True, "has_found": True}]
    with pytest.raises(ProgramError, match="must be JSON-able"):
        enumerator.discover_from(EnumeratorProgress({"sources": begun}, True, 1))
