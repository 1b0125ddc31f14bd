"""Split requests, doubled and stale ones; and that no split is lost or doubled over crashes and restores."""

import itertools
import json

import pytest
from control_harness import SourceStandIn, Splits, graph, vertex
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.connectors.contract import Discovery, SourceEvent, Split
from headrace.engine.errors import CheckpointMismatchError, ConfigurationError, SourceError
from headrace.engine.job.sources import source_coordinator
from headrace.engine.job.sources.source_coordinator import DiscoveryDue, Said, SourceCoordinator
from headrace.engine.job.sources.split_assignment import SplitAssignment
from headrace.engine.kernel.machine import Offload, OffloadCompleted, StartTimer
from headrace.engine.protocol.task_messages import RequestNextInputSplit, SourceEventToEnumerator
from headrace.state.identifiers import ExecutionAttemptId


def attempt(subtask=0, number=0):
    return ExecutionAttemptId(1, number, "source", subtask)


def request(nonce, subtask=0, number=0):
    return RequestNextInputSplit(attempt(subtask, number), "source", nonce)


def ids(answers):
    return [split.split_id for answer in answers for split in answer.splits]


def found(*ids, is_final=False):
    return Discovery([Split(split_id) for split_id in ids], is_final)


def test_doubled_request_gets_the_same_split():
    assignment = SplitAssignment("source")
    assignment.discovered(found("a", "b"))
    [first] = assignment.requested(request(0))
    assert ids([first]) == ["a"]
    assert assignment.requested(request(0)) == [first]
    assert ids(assignment.requested(request(1))) == ["b"]
    assert assignment.requested(request(0)) == []


def test_waiting_readers_are_answered_in_their_order():
    assignment = SplitAssignment("source")
    assert assignment.requested(request(0, subtask=1)) == []
    assert assignment.requested(request(0, subtask=0)) == []
    assert assignment.requested(request(0, subtask=0)) == []
    answers = assignment.discovered(found("a"))
    assert [(a.attempt.subtask, a.splits[0].split_id) for a in answers] == [(1, "a")]
    answers = assignment.discovered(found("a", is_final=True))
    assert [(a.attempt.subtask, a.splits, a.no_more) for a in answers] == [(0, (), True)]


def test_known_splits_are_not_found_again():
    assignment = SplitAssignment("source")
    assignment.discovered(found("a"))
    assignment.requested(request(0))
    assignment.discovered(found("a", "b"))
    assert assignment.num_unassigned == 1


@pytest.mark.parametrize("origin", [None, "file"])
def test_what_a_discovery_names_twice_is_handed_out_once(origin):
    assignment = SplitAssignment("source")
    splits = [Split(name, origin=origin) for name in ("a", "b", "a", "b")]
    assignment.discovered(Discovery(splits, is_final=True))
    assert assignment.num_unassigned == 2


def cut(*bounds, path="a#1"):
    """A file, cut at some places; its name looks as if it was a piece."""
    splits = [Split(f"{path}#{start}-{end}", origin=path) for start, end in itertools.pairwise(bounds)]
    return Discovery(splits, is_final=False)


@given(st.lists(st.lists(st.integers(1, 9), unique=True).map(sorted), min_size=1, max_size=4))
def test_what_was_cut_once_is_never_cut_again(cuts):
    """However discovery cuts a file after each restart, every byte of it is in one split; other files are still new."""
    assignment = SplitAssignment("source")
    for places in cuts:
        assignment.discovered(cut(0, *places, 10))
        assignment = SplitAssignment("source").restore(json.loads(json.dumps(assignment.snapshot())))
    wanted = [0, *cuts[0], 10]
    held = [split["split_id"] for split in assignment.snapshot()["unassigned"]]
    assert held == [f"a#1#{start}-{end}" for start, end in itertools.pairwise(wanted)]
    assignment.discovered(cut(0, 10, path="a"))
    assert assignment.num_unassigned == len(held) + 1


def test_files_that_version_1_has_cut_are_known():
    old = {"known": ["whole", "cut#0-5", "cut#5-10"], "unassigned": [], "is_final": False}
    assignment = SplitAssignment("source").restore(old)
    for path in ("whole", "cut", "new"):
        assignment.discovered(cut(0, 10, path=path))
    assert [split["split_id"] for split in assignment.snapshot()["unassigned"]] == ["new#0-10"]


def test_snapshot_is_json_and_restores_equal():
    assignment = SplitAssignment("source")
    assignment.discovered(Discovery([Split("a", {"path": "x"}, [1, 2]), Split("b")], is_final=True))
    snapshot = json.loads(json.dumps(assignment.snapshot()))
    assert SplitAssignment("source").restore(snapshot).snapshot() == assignment.snapshot()


def test_foreign_snapshot_is_refused():
    with pytest.raises(CheckpointMismatchError):
        SplitAssignment("source").restore({"something": "else"})


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("discover"), st.integers(1, 4)),
        st.tuples(st.just("request"), st.integers(0, 2)),
        st.tuples(st.just("finish"), st.integers(0, 2)),
        st.just(("checkpoint", 0)),
        st.just(("crash", 0)),
    ),
    max_size=60,
)


@given(ACTIONS)
def test_no_split_is_lost_or_doubled_over_crashes(actions):
    """Readers keep what they hold in the checkpoint; a crash goes back to it; in the end no split is missing."""
    assignment, outside, number = SplitAssignment("source"), [], 0
    held, nonces, finished = {0: [], 1: [], 2: []}, {0: 0, 1: 0, 2: 0}, []
    saved = (None, {0: [], 1: [], 2: []}, [])

    def give(answers):
        for answer in answers:
            subtask = answer.attempt.subtask
            if answer.attempt.attempt == number and answer.nonce == nonces[subtask]:
                nonces[subtask] += 1
                held[subtask] += [split.split_id for split in answer.splits]

    for action, value in [*actions, ("discover", 0)]:
        if action == "discover":
            outside += [f"s{len(outside) + i}" for i in range(value)]
            give(assignment.discovered(found(*outside)))
        elif action == "request":
            give(assignment.requested(request(nonces[value], value, number)))
        elif action == "finish" and held[value]:
            finished.append(held[value].pop(0))
        elif action == "checkpoint":
            copy = {subtask: list(splits) for subtask, splits in held.items()}
            saved = (json.loads(json.dumps(assignment.snapshot())), copy, list(finished))
        elif action == "crash":
            snapshot, splits, done = saved
            assignment = SplitAssignment("source").restore(snapshot)
            held, finished = {subtask: list(ids) for subtask, ids in splits.items()}, list(done)
            nonces, number = {0: 0, 1: 0, 2: 0}, number + 1
        everything = [*finished, *(split for splits in held.values() for split in splits)]
        everything += [split["split_id"] for split in assignment.snapshot()["unassigned"]]
        assert len(set(everything)) == len(everything)
    give(assignment.discovered(found(*outside)))
    left = [split["split_id"] for split in assignment.snapshot()["unassigned"]]
    assert sorted([*finished, *left, *(s for splits in held.values() for s in splits)]) == sorted(outside)


def coordinator(source):
    return SourceCoordinator(graph(vertex("source", 2, SourceStandIn(source))))


def test_discovery_is_repeated_until_final():
    source = Splits(["a"], is_final=False, interval_ms=70)
    sources = coordinator(source)
    [offload] = sources.begin({})
    assert isinstance(offload, Offload)
    said = sources.discovered(OffloadCompleted(offload.name, offload.token, offload.work(), None))
    [timer] = said.commands
    assert said.answers == []
    assert timer == StartTimer("discover-source", 70, DiscoveryDue("source"))
    source.is_final = True
    [offload] = sources.discovery_due(timer.message)
    assert sources.discovered(OffloadCompleted(offload.name, offload.token, offload.work(), None)) == Said()
    assert sources.snapshot(1)["source"]["is_final"] is True


def test_final_assignment_is_restored_without_discovery():
    sources = coordinator(Splits(["a"]))
    assert sources.begin({"source": {"known": ["a"], "unassigned": [], "is_final": True}}) == []


def test_one_discovery_at_a_time_serves_the_newest_deployment():
    sources = coordinator(Splits(["a"]))
    [offload] = sources.begin({})
    sources.stop()
    assert sources.begin({}) == []
    assert sources.requested(request(0)) == Said()
    said = sources.discovered(OffloadCompleted(offload.name, offload.token, offload.work(), None))
    assert ids(said.answers) == ["a"]


def test_an_old_discovery_that_failed_is_repeated():
    sources = coordinator(Splits())
    [offload] = sources.begin({})
    sources.begin({})
    said = sources.discovered(OffloadCompleted(offload.name, offload.token, None, OSError("gone")))
    assert said.answers == []
    assert [command.name for command in said.commands] == ["discover_splits"]


def failing(sources, offload, error):
    return sources.discovered(OffloadCompleted(offload.name, offload.token, None, error))


def test_a_look_that_fails_is_made_again_later_and_later_and_said():
    sources = coordinator(Splits(["a"]))
    [offload] = sources.begin({})
    delays, notes = [], []
    for _ in range(source_coordinator.FIRST_ATTEMPTS - 1):
        said = failing(sources, offload, OSError("gone"))
        [timer] = said.commands
        delays.append(timer.delay_ms)
        notes += said.notes
        [offload] = sources.discovery_due(timer.message)
    assert delays == [100, 200, 400]
    assert "'source'" in notes[0]
    assert "1 of 4" in notes[0]
    with pytest.raises(SourceError, match=r"could not be discovered.*gone"):
        failing(sources, offload, OSError("gone"))


def test_what_worked_once_has_more_patience():
    sources = coordinator(Splits(["a"], is_final=False, interval_ms=70))
    [offload] = sources.begin({})
    [timer] = sources.discovered(OffloadCompleted(offload.name, offload.token, offload.work(), None)).commands
    for _ in range(source_coordinator.LATER_ATTEMPTS - 1):
        [offload] = sources.discovery_due(timer.message)
        [timer] = failing(sources, offload, SourceError("gone")).commands
    assert timer.delay_ms == source_coordinator.MAX_DELAY_MS
    [offload] = sources.discovery_due(timer.message)
    with pytest.raises(SourceError):
        failing(sources, offload, SourceError("gone"))


@pytest.mark.parametrize("error", [ConfigurationError("wrong"), TypeError("wrong"), NameError("wrong")])
def test_what_cannot_get_better_is_not_tried_again(error):
    sources = coordinator(Splits(["a"]))
    [offload] = sources.begin({})
    with pytest.raises((SourceError, ConfigurationError), match="wrong"):
        failing(sources, offload, error)


def endless(*ids, **options):
    return Discovery([Split(id_, is_bounded=False) for id_ in ids], is_final=False, **options)


def wants(subtask, nonce=0, *, num_splits=0, is_hungry=True):
    return RequestNextInputSplit(attempt(subtask), "source", nonce, num_splits, is_hungry)


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=3, max_size=3), st.integers(1, 20), st.permutations(range(3)))
def test_endless_splits_are_dealt_to_those_who_have_fewest(counts, num_new, order):
    """All at once, as soon as all readers are there, in whatever order they ask."""
    assignment = SplitAssignment("source", 3)
    assignment.discovered(endless(*map(str, range(num_new))))
    for subtask in order[:-1]:
        assert assignment.requested(wants(subtask, num_splits=counts[subtask])) == []
    answers = assignment.requested(wants(order[-1], num_splits=counts[order[-1]]))
    assert sorted(ids(answers), key=int) == [str(i) for i in range(num_new)]
    before = list(counts)
    for answer in answers:
        counts[answer.attempt.subtask] += len(answer.splits)
    filled = [count for count, was in zip(counts, before, strict=True) if count > was]
    assert max(filled) - min(counts) <= 1


def test_bounded_and_endless_splits_side_by_side():
    assignment = SplitAssignment("source", 2)
    assignment.requested(wants(0, is_hungry=False))
    assignment.requested(wants(1))
    answers = assignment.discovered(Discovery([Split("file"), Split("topic", is_bounded=False)], is_final=False))
    assert [(a.attempt.subtask, ids([a])) for a in answers] == [(0, ["topic"]), (1, ["file"])]


def test_a_reader_that_gets_time_says_so_by_the_same_request():
    assignment = SplitAssignment("source", 2)
    assignment.requested(wants(0, is_hungry=False))
    assert assignment.discovered(found("a")) == []
    [answer] = assignment.requested(wants(0))
    assert assignment.requested(wants(0, is_hungry=False)) == [answer]


def test_positions_that_another_look_would_move_wait_for_a_checkpoint_that_holds_them():
    assignment = SplitAssignment("source", checkpointing=True)
    assignment.requested(wants(0))
    assignment.triggered(1)
    assert assignment.discovered(Discovery([Split("a", {}, 7)], is_final=True)) == []
    assert assignment.take_checkpoint_wish()
    assert not assignment.take_checkpoint_wish()
    assert assignment.completed(1) == []
    assignment.triggered(2)
    snapshot = json.loads(json.dumps(assignment.snapshot()))
    assert ids(assignment.completed(2)) == ["a"]
    again = SplitAssignment("source", checkpointing=True).restore(snapshot)
    [answer] = again.requested(wants(0))
    assert [(split.split_id, split.position) for split in answer.splits] == [("a", 7)]


@pytest.mark.parametrize("options", [{"is_repeatable": True}, {"checkpointing": False}])
def test_nothing_waits_without_need(options):
    assignment = SplitAssignment("source", checkpointing=options.pop("checkpointing", True))
    assignment.requested(wants(0))
    assert ids(assignment.discovered(Discovery([Split("a", {}, 7)], is_final=True, **options))) == ["a"]


def test_without_checkpoints_a_restart_begins_where_the_leader_looked_first():
    source = Splits([])
    sources = coordinator(source)
    positions = []
    for position in (3, 9):
        source.discover = lambda position=position: Discovery([Split("a", {}, position)], is_final=True)
        [offload] = sources.begin({})
        sources.discovered(OffloadCompleted(offload.name, offload.token, offload.work(), None))
        sources._sources["source"].assignment.parallelism = 1
        said = sources.requested(request(0))
        positions += [split.position for answer in said.answers for split in answer.splits]
        sources.stop()
    assert positions == [3, 3]


def test_events_and_looks_are_one_call_at_a_time_and_know_what_was_said_before():
    calls = []

    class Listening(Splits):
        def discover_from(self, progress):
            calls.append(("look", progress.state))
            return Discovery([], is_final=False, state="looked")

        def handle_source_event(self, subtask, event, progress):
            calls.append((subtask, event, progress.state))
            return Discovery([], is_final=False, state=event, events=(SourceEvent("answer", subtask),))

    sources = coordinator(Listening())
    [offload] = sources.begin({})
    for event in ("x", "y"):
        assert sources.event_received(SourceEventToEnumerator(attempt(1), "source", event)) == []
    said = []
    while True:
        done = sources.discovered(OffloadCompleted(offload.name, offload.token, offload.work(), None))
        said += done.events
        if not done.commands:
            break
        [offload] = done.commands
    assert calls == [("look", None), (1, "x", "looked"), (1, "y", "x")]
    assert said == [("source", 1, "answer"), ("source", 1, "answer")]
    assert sources.snapshot(1)["source"]["state"] == "y"


@pytest.mark.parametrize("continues", [True, False])
def test_who_has_more_to_say_when_all_is_read_is_asked_also_if_it_knew(continues):
    told = []

    class Chain(Splits):
        def discover_from(self, progress):
            told.append(progress.is_exhausted)
            return Discovery([], is_final=len(told) == 3, continues=continues)

    def end(offload):
        return sources.discovered(OffloadCompleted(offload.name, offload.token, offload.work(), None)).commands

    sources = coordinator(Chain())
    [first] = sources.begin({})
    for subtask in (0, 1):  # every reader waits before the first look has ended
        assert sources.requested(wants(subtask)) == Said()
    [second] = end(first)
    commands = end(second)
    if continues:
        [third] = commands
        assert end(third) == []
    assert told == [False, True, True][: 3 if continues else 2]


def test_positions_found_first_are_those_of_another_look_at_the_same_only():
    class Moving(Splits):
        num_looks = 0

        def discover(self):
            self.num_looks += 1
            since = {"since": 0 if self.num_looks < 3 else 7}
            return Discovery([Split("a", since, self.num_looks)], is_final=True)

    sources = coordinator(Moving())
    positions = []
    for _ in range(4):
        for offload in sources.begin({}):
            sources.discovered(OffloadCompleted(offload.name, offload.token, offload.work(), None))
        positions.append(sources.snapshot(1)["source"]["unassigned"][0]["position"])
        sources.stop()
    assert positions == [1, 1, 3, 3]
