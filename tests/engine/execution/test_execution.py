"""Transition tables (every pair), the story an invalid change carries, and the graph's bookkeeping."""

import pickle
from itertools import product

import pytest
from control_harness import edge, graph, pipeline, vertex

from headrace.engine.execution.graph import (
    JOB_TRANSITIONS,
    TASK_TRANSITIONS,
    Execution,
    ExecutionGraph,
    InvalidTransition,
    SlotPlace,
    check_transition,
)
from headrace.engine.kernel.event_log import EventLog
from headrace.engine.kernel.machine import Address
from headrace.engine.protocol.states import JobStatus, TaskState
from headrace.engine.protocol.views import SlotInfo
from headrace.state.identifiers import ExecutionAttemptId

PLACE = SlotPlace("tm", SlotInfo(0, Address("slot", "slot")))


def places(job_graph):
    return {(v.vertex_id, i): PLACE for v in job_graph.vertices.values() for i in range(v.parallelism)}


@pytest.mark.parametrize(("start", "finish"), list(product(TaskState, TaskState)))
def test_task_changes_exactly_as_the_table_says(start, finish):
    execution = Execution(ExecutionAttemptId(1, 0, "v", 0), PLACE)
    execution.state = start
    if finish in TASK_TRANSITIONS[start]:
        execution.transition(finish, EventLog(), 0)
        assert execution.state is finish
    else:
        with pytest.raises(InvalidTransition):
            execution.transition(finish, EventLog(), 0)
        assert execution.state is start


@pytest.mark.parametrize(("start", "finish"), list(product(JobStatus, JobStatus)))
def test_job_changes_exactly_as_the_table_says(start, finish):
    if finish in JOB_TRANSITIONS[start]:
        check_transition("job", start, finish, EventLog())
    else:
        with pytest.raises(InvalidTransition):
            check_transition("job", start, finish, EventLog())


def test_terminal_states_are_final():
    assert all(bool(TASK_TRANSITIONS[state]) != state.is_terminal for state in TaskState)
    assert all(not JOB_TRANSITIONS[state] for state in JobStatus if state.is_terminal)


def test_every_state_can_be_left_by_failure_or_cancellation():
    """A job or task that is not over can always be ended: no state is a trap."""
    for state in TaskState:
        assert state.is_terminal or {TaskState.CANCELING, TaskState.CANCELED} & TASK_TRANSITIONS[state]
        assert state.is_terminal or TaskState.FAILED in TASK_TRANSITIONS[state]


def test_invalid_change_carries_its_story_through_pickling():
    log = EventLog()
    execution = Execution(ExecutionAttemptId(1, 0, "v", 3), PLACE)
    execution.transition(TaskState.SCHEDULED, log, 17, "because")
    with pytest.raises(InvalidTransition) as caught:
        execution.transition(TaskState.RUNNING, log, 18)
    error = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(error, InvalidTransition)
    assert error.context["start"] == "SCHEDULED"
    assert error.context["finish"] == "RUNNING"
    [first] = error.context["story"]
    assert first.endswith('operator=v subtask=3 attempt=0 epoch=1 event="CREATED -> SCHEDULED (because)"')


def test_each_deployment_makes_new_executions():
    execution_graph = ExecutionGraph(pipeline(2))
    first = execution_graph.schedule(1, 0, places(execution_graph.job_graph))
    for execution in first:
        execution_graph.transition(execution, TaskState.FAILED, EventLog(), 0)
    second = execution_graph.schedule(1, 1, places(execution_graph.job_graph))
    assert {e.attempt for e in first}.isdisjoint(e.attempt for e in second)
    assert execution_graph.find(first[0].attempt) is None
    assert execution_graph.find(second[0].attempt) is second[0]


def test_counts_follow_the_states():
    execution_graph = ExecutionGraph(pipeline(2))
    assert not execution_graph.are_all_in(TaskState.CREATED)
    executions = execution_graph.schedule(1, 0, places(execution_graph.job_graph))
    assert execution_graph.are_all_in(TaskState.CREATED)
    assert not execution_graph.have_all_ended()
    execution_graph.transition(executions[0], TaskState.FAILED, EventLog(), 0)
    assert execution_graph.are_all_in(TaskState.CREATED, TaskState.FAILED)
    assert execution_graph.state_counts("source") == {"FAILED": 1, "CREATED": 1}
    for execution in executions[1:]:
        execution_graph.transition(execution, TaskState.CANCELED, EventLog(), 0)
    assert execution_graph.have_all_ended()


def test_sources_are_the_vertices_without_input():
    job_graph = graph(vertex("a", 1), vertex("b", 1), vertex("c", 1), edges=[edge(0, "a", "c"), edge(1, "b", "c")])
    assert ExecutionGraph(job_graph).source_vertices() == ["a", "b"]
