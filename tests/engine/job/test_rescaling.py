"""Rescale by command: which graph a request means, and the way from the command to tasks at the new parallelism."""

import pytest
from control_harness import (
    COORDINATOR,
    JOB,
    JOB_MANAGER,
    ControlWorld,
    edge,
    graph,
    pipeline,
    settings,
    submission,
    vertex,
)

from headrace import StreamExecutionEnvironment
from headrace.engine.errors import (
    CheckpointError,
    ConfigurationError,
    JobError,
    NoResourceAvailableError,
    UserFunctionError,
)
from headrace.engine.graph.job_graph import JobEdge
from headrace.engine.graph.rescaling import requested_parallelism, rescaled
from headrace.engine.job.context.phase import Phase
from headrace.engine.kernel.config import RestartStrategy
from headrace.engine.kernel.machine import Address
from headrace.engine.operators.exchange import ForwardPartitioner, ImplicitForwardPartitioner, RebalancePartitioner
from headrace.engine.protocol.checkpoint_messages import AcknowledgeCheckpoint
from headrace.engine.protocol.control_messages import RelayToSlot
from headrace.engine.protocol.messages import (
    JobStatusChanged,
    RegisterTaskManager,
    RequestFailed,
    RequestSlots,
    RescaleJob,
    SlotLost,
    SlotRequestFailed,
    StopJob,
)
from headrace.engine.protocol.states import JobStatus
from headrace.engine.protocol.views import SlotInfo, StopMode
from headrace.state.checkpoints.storage import CheckpointStorage


def environment(parallelism=2):
    return StreamExecutionEnvironment.get_execution_environment("sim").set_parallelism(parallelism)


def program(parallelism=2):
    """numbers -> keyed sum -> print, and a source that cannot be parallel."""
    env = environment(parallelism)
    numbers = env.from_collection([("a", 1)]).map(lambda row: row).uid("read")
    totals = numbers.key_by(lambda row: row[0]).reduce(lambda a, b: a).uid("sum").map(lambda row: row).uid("after")
    totals.print()
    return env.get_job_graph()


def by_name(job_graph):
    return {node.uid: v.parallelism for v in job_graph.vertices.values() for node in v.chain}


# ------------------------------------------------------------------------------------------------------------ the graph
def test_a_number_is_for_everything_that_can_be_parallel():
    job_graph = program()
    wanted = requested_parallelism(job_graph, 3, {})
    after = by_name(rescaled(job_graph, wanted))
    assert (after["read"], after["sum"], after["after"]) == (3, 3, 3)
    assert sorted(v.parallelism for v in rescaled(job_graph, wanted).vertices.values()) == [1, 3, 3]


def test_a_chain_changes_as_one_and_is_found_by_any_member_or_name():
    job_graph = program()
    keyed = next(v for v in job_graph.vertices.values() if any(n.uid == "sum" for n in v.chain))
    for name in ("sum", "after", keyed.name, keyed.vertex_id):
        assert requested_parallelism(job_graph, None, {name: 4}) == {keyed.vertex_id: 4}
    assert requested_parallelism(job_graph, 3, {"after": 1})[keyed.vertex_id] == 1


@pytest.mark.parametrize(
    ("parallelism", "operators", "said"),
    [
        (None, {}, "must name a parallelism"),
        (0, {}, "whole number, 1 or more"),
        (None, {"sum": True}, "whole number, 1 or more"),
        (None, {"nobody": 2}, "no operator 'nobody'"),
        (None, {"map": 2}, "operator called 'map'"),
        (None, {"sum": 2, "after": 3}, "'sum' and 'after' are in one chain"),
        (None, {"Source: collection": 2}, "must stay 1"),
        (200, {}, r"between 1 and max_parallelism \(128\); got 200"),
    ],
)
def test_what_cannot_be_is_refused_with_names(parallelism, operators, said):
    with pytest.raises(ConfigurationError, match=said):
        requested_parallelism(program(), parallelism, operators)


def test_forward_edges_are_dealt_out_where_their_ends_come_apart_and_forward_again_later():
    env = environment()
    stream = env.from_collection([1]).map(lambda x: x).uid("a").map(lambda x: x).uid("b").start_new_chain()
    stream.print()
    job_graph = env.get_job_graph()
    [between] = [e for e in job_graph.edges if e.target == "b"]
    assert isinstance(between.partitioner, ImplicitForwardPartitioner)
    apart = rescaled(job_graph, {"a": 2, "b": 3})
    assert isinstance(next(e for e in apart.edges if e.target == "b").partitioner, RebalancePartitioner)
    assert rescaled(job_graph, {"a": 5, "b": 5}).edges == job_graph.edges


def test_a_forward_that_the_program_asks_for_refuses_to_come_apart():
    job_graph = graph(vertex("a", 2), vertex("b", 2), edges=[edge(0, "a", "b", ForwardPartitioner())])
    with pytest.raises(ConfigurationError, match="forward partitioning cannot change the parallelism"):
        rescaled(job_graph, {"a": 3})
    assert rescaled(job_graph, {"a": 3, "b": 3}).vertices["b"].parallelism == 3


def looped(fixed=False):
    edges = [edge(0, "source", "head"), loop_edge(1, "head", "body"), loop_edge(2, "body", "head", is_feedback=True)]
    return graph(vertex("source", 2), vertex("head", 2), vertex("body", 2, is_parallel=not fixed), edges=edges)


def loop_edge(edge_id, source, target, **options):
    return JobEdge(edge_id, source, 0, None, target, 0, RebalancePartitioner(), 128, is_in_loop=True, **options)


def test_loops_are_rescaled_as_a_whole():
    assert requested_parallelism(looped(), 3, {}) == {"source": 3, "head": 3, "body": 3}
    assert requested_parallelism(looped(), None, {"head": 3, "body": 3}) == {"head": 3, "body": 3}
    with pytest.raises(ConfigurationError, match="it has 'body', too"):
        requested_parallelism(looped(), None, {"head": 3})
    with pytest.raises(ConfigurationError, match="to one parallelism; got 'head': 3, 'body': 4"):
        requested_parallelism(looped(), None, {"head": 3, "body": 4})
    assert requested_parallelism(looped(fixed=True), 3, {}) == {"source": 3}


# ---------------------------------------------------------------------------------------------------------- the command
ENDLESS = RestartStrategy(-1, 50)


def implicit_pipeline(parallelism):
    job_graph = pipeline(parallelism)
    [between] = job_graph.edges
    object.__setattr__(between, "partitioner", ImplicitForwardPartitioner())
    return job_graph


def world(parallelism=2, *, num_slots=None, checkpoints=True, predecessor=None, epoch=1, **options):
    options.setdefault("attached", False)
    options.setdefault("restart", ENDLESS)
    options.setdefault("tolerable_failures", 5) if checkpoints else None
    job = submission(implicit_pipeline(parallelism), settings(checkpoints=checkpoints, **options), parallelism)
    return ControlWorld(job, epoch, num_slots=num_slots, predecessor=predecessor)


def parallelisms(w):
    return tuple(v.parallelism for v in w.jm.view().vertices)


def answer(w, ask):
    reply = w.replies.get(ask)
    return type(reply.error) if isinstance(reply, RequestFailed) else reply


def slots_wanted(w):
    return [m.num_slots for m in w.messages(RequestSlots)]


def test_up_waits_for_slots_then_takes_a_checkpoint_then_restarts_from_it():
    w = world().run()
    ask = w.ask(RescaleJob(3))
    assert slots_wanted(w) == [2, 3]
    assert w.jm.phase is Phase.EXECUTING
    assert w.jm.view().last_checkpoint is None
    w.register(num_slots=3)
    assert answer(w, ask) is True
    assert parallelisms(w) == (3, 3)
    assert w.jm.status is JobStatus.RUNNING
    assert {r.message.deployment.restore.checkpoint_id for r in w.messages(RelayToSlot)[4:]} == {1}
    assert w.jm.view().num_restarts == 0
    assert {a.attempt for a in w.current()} == {1}


def test_down_gives_back_what_is_not_needed():
    w = world(3).run()
    w.register(num_slots=3)
    ask = w.ask(RescaleJob(1))
    assert answer(w, ask) is True
    assert parallelisms(w) == (1, 1)
    assert slots_wanted(w)[-2:] == [1, 1]
    storage = CheckpointStorage.open(w.job.settings.checkpoints.directory, JOB)
    w.fire(COORDINATOR, "interval")
    assert storage.load(2).operators == ()


def test_task_managers_without_a_task_are_named():
    w = world(2, num_slots=1).run()
    more = (SlotInfo(0, Address("other-0", "slot")),)
    w.to_jm(RegisterTaskManager(JOB, "tm-2", Address("tm-2", "tm"), 1, more, {}, 1))
    assert w.jm.status is JobStatus.RUNNING
    assert answer(w, w.ask(RescaleJob(1))) is True
    assert [m.unused for m in w.messages(RequestSlots)][-1] == ("tm-2",)


def test_one_operator_alone():
    w = world(2, num_slots=3).run()
    assert answer(w, w.ask(RescaleJob(operators={"map": 3}))) is True
    assert parallelisms(w) == (2, 3)
    deployment = w.messages(RelayToSlot)[-1].message.deployment
    assert isinstance(deployment.input_edges[0].partitioner, RebalancePartitioner)
    assert len(deployment.inputs) == 2


def test_what_runs_like_that_already_is_answered_at_once():
    w = world().run()
    assert answer(w, w.ask(RescaleJob(2))) is True
    assert w.jm.view().checkpoints_completed == 0


def test_slots_that_do_not_come_leave_everything_as_it_was():
    w = world().run()
    ask = w.ask(RescaleJob(3))
    w.fire(JOB_MANAGER, "rescale")
    assert answer(w, ask) is NoResourceAvailableError
    assert "3 slots needed, 2 available" in str(w.replies[ask].error)
    assert (w.jm.phase, parallelisms(w), slots_wanted(w)[-1]) == (Phase.EXECUTING, (2, 2), 2)
    assert {a.attempt for a in w.current()} == {0}


def test_slots_that_are_refused_leave_everything_as_it_was():
    w = world().run()
    ask = w.ask(RescaleJob(9))
    w.to_jm(SlotRequestFailed(JOB, 1, "9 slots needed, the cluster has 4 (max_slots)"))
    assert answer(w, ask) is NoResourceAvailableError
    assert (w.jm.status, slots_wanted(w)[-1]) == (JobStatus.RUNNING, 2)


def test_a_checkpoint_that_fails_leaves_everything_as_it_was():
    w = world(num_slots=3).run()
    w.is_obedient = False
    ask = w.ask(RescaleJob(3))
    w.fire(COORDINATOR, "expire-1")
    assert answer(w, ask) is CheckpointError
    assert (w.jm.phase, parallelisms(w)) == (Phase.EXECUTING, (2, 2))


def test_a_checkpoint_that_was_under_way_is_not_fresh():
    w = world(num_slots=3).run()
    w.is_obedient = False
    w.fire(COORDINATOR, "interval")
    w.ask(RescaleJob(3))
    w.is_obedient = True
    for attempt in w.current():
        w.to_cc(AcknowledgeCheckpoint(attempt, 1, (), {}))
    assert parallelisms(w) == (3, 3)
    assert {r.message.deployment.restore.checkpoint_id for r in w.messages(RelayToSlot)[4:]} == {2}


def test_jobs_without_checkpoints_are_refused():
    w = world(checkpoints=False).run()
    assert answer(w, w.ask(RescaleJob(3))) is ConfigurationError


def test_jobs_that_end_are_refused_also_half_way():
    w = world().run()
    ask = w.ask(RescaleJob(3))
    w.is_obedient = False
    w.ask(StopJob(StopMode.DRAIN))
    assert answer(w, ask) is JobError
    assert answer(w, w.ask(RescaleJob(3))) is JobError


def test_the_same_command_waits_for_the_same_end_and_another_is_refused():
    w = world().run()
    first, again, other = w.ask(RescaleJob(3)), w.ask(RescaleJob(3)), w.ask(RescaleJob(4))
    assert answer(w, other) is ConfigurationError
    w.register(num_slots=3)
    assert (answer(w, first), answer(w, again)) == (True, True)


def test_a_failure_half_way_is_answered_as_always_and_then_the_command_goes_on():
    w = world().run()
    ask = w.ask(RescaleJob(3))
    w.report(w.current()[0], "FAILED", UserFunctionError("no"))
    w.register(num_slots=3)
    assert answer(w, ask) is None
    w.fire(JOB_MANAGER, "restart")
    assert answer(w, ask) is True
    assert parallelisms(w) == (3, 3)


def test_after_a_failure_slots_are_asked_for_again():
    """The restart has told the ResourceManager how many the job needs as it is, which gives back what was to come."""
    w = world().run()
    ask = w.ask(RescaleJob(3))
    w.report(w.current()[0], "FAILED", UserFunctionError("no"))
    w.fire(JOB_MANAGER, "restart")
    assert w.jm.phase is Phase.EXECUTING
    assert slots_wanted(w) == [2, 3, 2, 3]
    w.register(num_slots=3)
    assert answer(w, ask) is True
    assert parallelisms(w) == (3, 3)


def test_slots_that_came_and_went_are_waited_for_anew_but_not_for_ever():
    w = world().run()
    w.is_obedient = False
    ask = w.ask(RescaleJob(3))
    w.register(num_slots=3)  # the checkpoint is under way
    w.to_jm(SlotLost(JOB, 1, "tm-1", w.slot(2), "it died"))
    assert (w.jm.phase, slots_wanted(w)) == (Phase.EXECUTING, [2, 3, 3])
    w.fire(JOB_MANAGER, "rescale")
    assert answer(w, ask) is NoResourceAvailableError


def test_the_parallelism_outlives_its_leader_and_fits_the_checkpoints():
    first = world(num_slots=3).run()
    first.ask(RescaleJob(3))
    assert first.messages(JobStatusChanged)[-1].view.parallelism == {"source": 3, "map": 3}
    first.fire(COORDINATOR, "interval")
    directory = first.job.settings.checkpoints.directory
    view = first.messages(JobStatusChanged)[-1].view
    w = world(num_slots=3, directory=directory, epoch=2, predecessor=view).run()
    assert parallelisms(w) == (3, 3)
    assert slots_wanted(w) == [3]
    assert answer(w, w.ask(RescaleJob(3))) is True
    assert answer(w, w.ask(RescaleJob(1))) is True
    assert parallelisms(w) == (1, 1)


def test_regions_are_those_of_the_new_graph():
    w = world(2, num_slots=3).run()
    w.ask(RescaleJob(3))
    w.report(next(a for a in w.current() if a.subtask == 2), "FAILED", UserFunctionError("no"))
    w.fire(JOB_MANAGER, "restart")
    assert w.jm.view().vertices[0].attempts == (1, 1, 2)
