"""The JobManager's bookkeeping of TaskManagers, reports and clients, where it is easier to see alone."""

from control_harness import JOB, TASK_MANAGER

from headrace.engine.execution.slot_registry import SlotRegistry
from headrace.engine.job.context.clients import JobClients
from headrace.engine.job.context.reports import MAX_PER_FETCH, MAX_PRINTED, ReportLog
from headrace.engine.kernel.machine import Address
from headrace.engine.protocol.messages import Heartbeat, RegisterTaskManager, WaitForJob
from headrace.engine.protocol.task_messages import ReportEmitted
from headrace.engine.protocol.views import SlotInfo
from headrace.state.identifiers import ExecutionAttemptId

ATTEMPT = ExecutionAttemptId(1, 0, "sink", 0)


def announcement(revision, *hosts):
    slots = tuple(SlotInfo(i, Address(host, "slot")) for i, host in enumerate(hosts))
    return RegisterTaskManager(JOB, "tm-1", TASK_MANAGER, 1, slots, {}, revision)


def test_pool_takes_the_newest_announcement():
    registry = SlotRegistry()
    registry.register(announcement(2, "a", "b"))
    assert registry.register(announcement(1, "x")).lost_hosts == []
    assert registry.register(announcement(3, "b", "c")).lost_hosts == ["a"]
    assert [slot.address.host for slot in registry.all_slots()] == ["b", "c"]


def test_lost_slot_is_not_revived_by_an_announcement_from_before():
    registry = SlotRegistry()
    registry.register(announcement(1, "a"))
    assert registry.lose_slot("tm-1", "a")
    assert not registry.lose_slot("tm-1", "a")
    assert registry.register(announcement(2, "a", "b")).hosts_to_kill == ["a"]
    assert registry.num_slots == 1


def test_slots_of_a_lost_task_manager_are_condemned():
    registry = SlotRegistry()
    registry.register(announcement(1, "a"))
    assert registry.lose_task_manager("tm-1") == ["a"]
    assert registry.lose_task_manager("tm-1") == []
    assert registry.register(announcement(1, "a")).hosts_to_kill == ["a"]


def test_only_silence_over_several_rounds_is_death():
    registry = SlotRegistry()
    registry.register(announcement(1, "a"))
    for _ in range(5):
        assert registry.begin_heartbeats(2) == ([TASK_MANAGER], [])
        registry.heartbeat(Heartbeat(JOB, "tm-1", 0))
    for _ in range(3):
        assert registry.begin_heartbeats(2)[1] == []
    assert registry.begin_heartbeats(2) == ([], ["tm-1"])


def printed(number):
    return ReportEmitted(ATTEMPT, "sink", "print", str(number), number)


def test_unfetched_lines_are_bounded_but_rows_never_dropped():
    log = ReportLog(1)
    log.add(ReportEmitted(ATTEMPT._replace(subtask=1), "sink", "collect", ("id", [1]), 0))
    for number in range(MAX_PRINTED + 3):
        log.add(printed(number))
    first = log.fetch(0)
    assert [entry[3] for entry in first.reports[:2]] == [("id", [1]), "3"]
    assert len(first.reports) == MAX_PER_FETCH
    fetched, offset = first.reports, first.next_offset
    while (part := log.fetch(offset)).reports:
        fetched, offset = fetched + part.reports, part.next_offset
    assert [entry[3] for entry in fetched[1:]] == [str(n) for n in range(3, MAX_PRINTED + 3)]
    assert log.is_empty


def test_offsets_grow_over_leaders():
    old, new = ReportLog(1), ReportLog(2)
    old.add(printed(0))
    new.add(printed(1))
    assert [entry[3] for entry in new.fetch(old.fetch(0).next_offset).reports] == ["1"]


def test_versions_grow_over_leaders():
    old = JobClients(1, 10, is_attached=True)
    for _ in range(1_000):
        old.changed()
    assert JobClients(2, 10, is_attached=True).version > old.version


def test_detached_job_expects_no_client():
    clients = JobClients(1, 10, is_attached=False)
    assert clients.started() == []
    assert [command.key for command in clients.poll("x", WaitForJob(0, 5))] == ["poll-x"]


def test_attached_job_waits_longer_while_its_client_has_not_heard_of_the_end():
    clients = JobClients(1, 10, is_attached=True)
    clients.ended()
    clients.archived()
    assert clients.linger(has_reports=False)[0].delay_ms == 30_000
    clients.poll("x", WaitForJob(0, 5))
    clients.flush(lambda: None)
    assert clients.linger(has_reports=True)[0].delay_ms == 30_000
    assert clients.linger(has_reports=False)[0].delay_ms == 5_000
