"""Split requests (row D9), doubled and stale ones; and that no split is lost or doubled over crashes and restores."""

import json

import pytest
from control_harness import SourceStandIn, Splits, graph, vertex
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.connector import Discovery, Split
from headrace.engine.errors import CheckpointMismatchError, SourceError
from headrace.engine.machine import Offload, OffloadCompleted, StartTimer
from headrace.engine.split_assignment import DiscoveryDue, SourceCoordinator, SplitAssignment
from headrace.engine.task_messages import RequestNextInputSplit
from headrace.state.identifiers import ExecutionAttemptId


def attempt(subtask=0, number=0):
    return ExecutionAttemptId(1, number, "source", subtask)


def request(nonce, subtask=0, number=0):
    return RequestNextInputSplit(attempt(subtask, number), "source", nonce)


def found(*ids, is_final=False):
    return Discovery([Split(split_id) for split_id in ids], is_final)


def test_doubled_request_gets_the_same_split():
    assignment = SplitAssignment("source")
    assignment.discovered(found("a", "b"))
    first = assignment.requested(request(0))
    assert first.split.split_id == "a"
    assert assignment.requested(request(0)) == first
    assert assignment.requested(request(1)).split.split_id == "b"
    assert assignment.requested(request(0)) is None


def test_waiting_readers_are_answered_in_their_order():
    assignment = SplitAssignment("source")
    assert assignment.requested(request(0, subtask=1)) is None
    assert assignment.requested(request(0, subtask=0)) is None
    assert assignment.requested(request(0, subtask=0)) is None
    answers = assignment.discovered(found("a"))
    assert [(a.attempt.subtask, a.split.split_id) for a in answers] == [(1, "a")]
    answers = assignment.discovered(found("a", is_final=True))
    assert [(a.attempt.subtask, a.split, a.no_more) for a in answers] == [(0, None, True)]


def test_known_splits_are_not_found_again():
    assignment = SplitAssignment("source")
    assignment.discovered(found("a"))
    assignment.requested(request(0))
    assignment.discovered(found("a", "b"))
    assert assignment.num_unassigned == 1


def test_snapshot_is_json_and_restores_equal():
    assignment = SplitAssignment("source")
    assignment.discovered(Discovery([Split("a", {"path": "x"}, [1, 2]), Split("b")], is_final=True))
    snapshot = json.loads(json.dumps(assignment.snapshot()))
    assert SplitAssignment.restore("source", snapshot).snapshot() == assignment.snapshot()


def test_foreign_snapshot_is_refused():
    with pytest.raises(CheckpointMismatchError):
        SplitAssignment.restore("source", {"something": "else"})


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
                if answer.split is not None:
                    held[subtask].append(answer.split.split_id)

    for action, value in [*actions, ("discover", 0)]:
        if action == "discover":
            outside += [f"s{len(outside) + i}" for i in range(value)]
            give(assignment.discovered(found(*outside)))
        elif action == "request":
            answer = assignment.requested(request(nonces[value], value, number))
            give([] if answer is None else [answer])
        elif action == "finish" and held[value]:
            finished.append(held[value].pop(0))
        elif action == "checkpoint":
            copy = {subtask: list(splits) for subtask, splits in held.items()}
            saved = (json.loads(json.dumps(assignment.snapshot())), copy, list(finished))
        elif action == "crash":
            snapshot, splits, done = saved
            assignment = SplitAssignment.restore("source", snapshot)
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
    answers, [timer] = sources.discovered(OffloadCompleted(offload.name, offload.token, offload.work(), None))
    assert answers == []
    assert timer == StartTimer("discover-source", 70, DiscoveryDue("source"))
    source.is_final = True
    [offload] = sources.discovery_due(timer.message)
    assert sources.discovered(OffloadCompleted(offload.name, offload.token, offload.work(), None)) == ([], [])
    assert sources.snapshot(1)["source"]["is_final"] is True


def test_final_assignment_is_restored_without_discovery():
    sources = coordinator(Splits(["a"]))
    assert sources.begin({"source": {"known": ["a"], "unassigned": [], "is_final": True}}) == []


def test_one_discovery_at_a_time_serves_the_newest_deployment():
    sources = coordinator(Splits(["a"]))
    [offload] = sources.begin({})
    sources.stop()
    assert sources.begin({}) == []
    assert sources.requested(request(0)) is None
    answers, _ = sources.discovered(OffloadCompleted(offload.name, offload.token, offload.work(), None))
    assert [answer.split.split_id for answer in answers] == ["a"]


def test_failed_discovery_names_the_source_and_an_old_one_is_repeated():
    sources = coordinator(Splits())
    [offload] = sources.begin({})
    failed = OffloadCompleted(offload.name, offload.token, None, OSError("gone"))
    with pytest.raises(SourceError, match="gone"):
        sources.discovered(failed)
    sources.begin({})
    sources.begin({})
    answers, [again] = sources.discovered(failed)
    assert answers == []
    assert again.name == "discover_splits"
