"""The managed memory of slots: how it is divided, what is counted, what is refused; and what TaskManagers report."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from control_harness import JOB, JOB_MANAGER, of_kind, sent, settings

from headrace.actors.machine_resources import examine_machine, memory_of
from headrace.engine.cluster.resource_manager import ResourceManager
from headrace.engine.cluster.task_manager import TaskManager
from headrace.engine.errors import ConfigurationError, ManagedMemoryError, StorageError
from headrace.engine.kernel.config import ClusterSettings
from headrace.engine.kernel.machine import Address, Offload, OffloadCompleted, Reply, SpawnHost, Started, StartTimer
from headrace.engine.kernel.slot_resources import MachineResources, NetworkInterface, managed_memory_bytes
from headrace.engine.protocol.control_messages import TaskManagersAsked
from headrace.engine.protocol.messages import JobManagerChanged, RegisterTaskManager, RequestSlots
from headrace.state.backends.choice import make_keyed_backend
from headrace.state.backends.heap.backend import HeapKeyedStateBackend
from headrace.state.checkpoints.snapshot import RestoredPart
from headrace.state.identifiers import OperatorId
from headrace.state.keyed.descriptors import ValueStateDescriptor
from headrace.state.keyed.managed_memory import DEFAULT_SHARE_BYTES, ManagedMemory, MemoryUse, bytes_text
from headrace.state.keys.key_groups import key_group_range

GIB = 1 << 30
MACHINE = MachineResources(
    4.0, 10 * GIB, 6 * GIB, "/data", 100 * GIB, 40 * GIB, (NetworkInterface("eth0", ("10.0.0.7",)),), "worker-7"
)
SCHEMA = pa.schema([("user", pa.int64()), ("n", pa.int64())])
ADDRESS = Address("tm-a-0", "tm")


def runs(num_rows, first=0):
    return pa.record_batch({"user": list(range(first, first + num_rows)), "n": [1] * num_rows}, SCHEMA)


def columns(memory, subtask=0, parallelism=1):
    backend = HeapKeyedStateBackend(
        OperatorId("op"), key_group_range(16, parallelism, subtask), 16, account=memory.account()
    )
    return backend, backend.columnar_table("runs", SCHEMA, ("user",))


# ------------------------------------------------------------------------------------------------------------ division
@pytest.mark.parametrize(("num_slots", "share"), [(1, 1_200), (2, 600), (3, 400), (4, 300), (5, 240)])
def test_each_slot_gets_its_even_share(num_slots, share):
    manager = TaskManager(
        ADDRESS, JOB, Address("rm", "rm"), JOB_MANAGER, 1, num_slots, settings(), managed_memory_bytes=1_200
    )
    commands = manager.handle(Started(ADDRESS), 0)
    registration = sent(commands, RegisterTaskManager, JOB_MANAGER)[0]
    assert registration.resources["managed_memory_bytes"] == 1_200
    assert registration.resources["managed_memory_bytes_per_slot"] == share
    spawns = of_kind(commands, SpawnHost)
    slots = [build(Address(spawn.host, name)) for spawn in spawns for name, build in spawn.actors]
    assert [slot.memory.share_bytes for slot in slots] == [share] * num_slots
    assert registration.view().slot_memory_bytes == share


def test_by_default_it_is_the_slots_part_of_the_machine():
    assert managed_memory_bytes(0, 4, 1.0, MACHINE) == 4 * GIB
    assert managed_memory_bytes(0, 1, 1.0, MACHINE) == GIB, "four TaskManagers of one slot get as much as one of four"
    assert managed_memory_bytes(0, 9, 1.0, MACHINE) == 4 * GIB, "more slots than cores share the same"
    assert managed_memory_bytes(0, 2, 0.0, MACHINE) == 2 * GIB
    assert managed_memory_bytes(77, 2, 1.0, MACHINE) == 77
    assert managed_memory_bytes(0, 3, 1.0, None) == 3 * DEFAULT_SHARE_BYTES
    with pytest.raises(ConfigurationError, match="managed_memory_bytes"):
        ClusterSettings(managed_memory_bytes=-1)


# ------------------------------------------------------------------------------------------------------------ counting
def test_what_columnar_state_holds_is_counted_until_it_is_dropped():
    memory = ManagedMemory(1 << 20)
    backend, table = columns(memory)
    assert backend.managed_bytes() is None, "nothing was ever counted"
    for number in range(3):
        table.append((0, 10), runs(100, 100 * number))
    table.append((10, 20), runs(50))
    assert memory.used_bytes == backend.managed_bytes() == 350 * 16
    table.replace((0, 10), [runs(200)])
    assert memory.used_bytes == 250 * 16
    table.drop((10, 20))
    table.drop((10, 20))
    assert memory.used_bytes == 200 * 16
    backend.close()
    backend.close()
    assert memory.used_bytes == 0


def test_operators_of_a_slot_share_and_what_does_not_fit_is_not_taken():
    memory = ManagedMemory(100 * 16)
    _, one = columns(memory)
    other_backend, other = columns(memory)
    one.append((0, 10), runs(60))
    other.append((0, 10), runs(30))
    with pytest.raises(ManagedMemoryError, match=r"slot's share of managed memory is 1\.6 KiB") as refused:
        other.append((0, 10), runs(20))
    assert "'runs'" in str(refused.value)
    assert "other operators of the slot hold 960 bytes" in str(refused.value)
    assert "rocksdb" in refused.value.hint
    assert (memory.used_bytes, len(other.runs((0, 10)))) == (90 * 16, 1)
    one.drop((0, 10))
    other.append((0, 10), runs(20))
    assert other_backend.managed_bytes() == 50 * 16


def test_columns_keep_out_of_the_part_that_is_for_sorting_also_while_nothing_is_sorted():
    """Else a region that starts over would find its part taken."""
    memory, use = ManagedMemory(100 * 16), MemoryUse(2, keeps_state=True)
    backend = HeapKeyedStateBackend(OperatorId("op"), key_group_range(16, 1, 0), 16, account=memory.account(use))
    table = backend.columnar_table("runs", SCHEMA, ("user",))
    sorting = [memory.account(use) for _ in range(2)]
    parts = [account.reserve(memory.sort_bytes(None, use), 1) for account in sorting]
    assert parts == [25 * 16] * 2
    for account in sorting:
        account.close()
    table.append((0, 10), runs(50))
    with pytest.raises(
        ManagedMemoryError, match=r"share of managed memory is 1\.6 KiB, of which 800 bytes are for sort"
    ):
        table.append((0, 10), runs(1))
    assert [memory.account(use).reserve(memory.sort_bytes(None, use), 1) for _ in range(2)] == parts
    assert (memory.used_bytes, memory.state_bytes) == (100 * 16, 50 * 16)


def test_memory_is_divided_by_flinks_weights():
    assert MemoryUse().state_bytes(80) == 80
    assert MemoryUse(3, keeps_state=True).state_bytes(80) == 40
    assert MemoryUse(3, keeps_state=False).state_bytes(80) == 0
    assert ManagedMemory(80).sort_bytes(None, MemoryUse(3, keeps_state=False)) == 26
    assert ManagedMemory(80).sort_bytes(50, MemoryUse(3, keeps_state=True)) == 10
    assert ManagedMemory(80).sort_bytes(90, MemoryUse(3, keeps_state=True)) == 0
    with pytest.raises(ManagedMemoryError, match=r"RocksDB needs 8\.0 MiB .* of which 5\.0 MiB are for sorting"):
        ManagedMemory(10 << 20).database_bytes(None, MemoryUse(1))


def test_a_small_piece_does_not_keep_a_large_batch():
    memory = ManagedMemory(1 << 20)
    _, table = columns(memory)
    large = runs(100_000)
    table.append((0, 10), large.slice(7, 3))
    [kept] = table.runs((0, 10))
    assert kept.to_pylist() == large.slice(7, 3).to_pylist()
    assert kept.get_total_buffer_size() < 4_096
    assert memory.used_bytes == 48


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_restore_into_a_smaller_share_is_refused_and_into_an_equal_one_is_not(parallelism):
    backend, table = columns(ManagedMemory())
    table.append((0, 10), runs(900))
    parts = [RestoredPart(part.state, part.kind, part.metadata, part.write(), 0) for part in backend.snapshot()]
    for subtask in range(parallelism):
        memory = ManagedMemory(900 * 16 * 2 // parallelism)
        restored = HeapKeyedStateBackend(
            OperatorId("op"), key_group_range(16, parallelism, subtask), 16, account=memory.account()
        )
        restored.restore(parts)
        assert 0 < memory.used_bytes == restored.managed_bytes()
        small = ManagedMemory(900 * 16 // parallelism // 2)
        refused = HeapKeyedStateBackend(
            OperatorId("op"), key_group_range(16, parallelism, subtask), 16, account=small.account()
        )
        with pytest.raises(ManagedMemoryError, match="does not fit into memory"):
            refused.restore(parts)
        refused.close()
        assert small.used_bytes == 0


def test_databases_have_the_share_or_what_the_program_says_if_that_fits():
    assert ManagedMemory(64 << 20).database_bytes(None) == 64 << 20
    assert ManagedMemory(64 << 20).database_bytes(16 << 20) == 16 << 20
    assert ManagedMemory().database_bytes(None) == DEFAULT_SHARE_BYTES
    with pytest.raises(ManagedMemoryError, match=r"take 128.0 MiB .* a slot's share is 64.0 MiB"):
        ManagedMemory(64 << 20).database_bytes(128 << 20)
    with pytest.raises(ManagedMemoryError, match=r"RocksDB needs 8.0 MiB .* share is 5.0 MiB"):
        ManagedMemory(5 << 20).database_bytes(None)
    assert [bytes_text(size) for size in (0, 1_023, 1_536, 5 * GIB)] == ["0 bytes", "1023 bytes", "1.5 KiB", "5.0 GiB"]


def test_databases_of_a_slot_say_what_they_take_of_it():
    memory, description = ManagedMemory(16 << 20), ValueStateDescriptor("n")
    backends = [
        make_keyed_backend(
            "rocksdb", OperatorId(uid), 0, key_group_range(16, 1, 0), 16, lambda: 0, slot="a slot", memory=memory
        )
        for uid in ("one", "two")
    ]
    assert [backend.managed_bytes() for backend in backends] == [None, None]
    for backend in backends:
        backend.table(description).namespace(None).update(dict.fromkeys(range(20000), "x" * 100))
    used = [backend.managed_bytes() for backend in backends]
    assert all(share > 0 for share in used)
    assert sum(used) <= 16 << 20
    for backend in backends:
        backend.close()


# -------------------------------------------------------------------------------------------------------- registration
class Looking:
    """A ResourceManager whose TaskManagers look at their machines."""

    def __init__(self):
        self.manager = ResourceManager(Address("head", "rm"), ClusterSettings(), examine=lambda _disk: MACHINE)
        asked = RequestSlots(JOB, 1, JOB_MANAGER, 2, settings())
        [spawn] = of_kind(self.manager.handle(asked, 0), SpawnHost)
        [(name, build)] = spawn.actors
        self.address = Address(spawn.host, name)
        self.task_manager = build(self.address)

    def started(self):
        return self.task_manager.handle(Started(self.address, "n1"), 0)

    def listed(self):
        [reply] = of_kind(self.manager.handle(TaskManagersAsked("q"), 0), Reply)
        return reply.value


def test_a_task_manager_reports_memory_disk_and_network_and_the_cluster_keeps_them():
    driver = Looking()
    commands = driver.started()
    [look] = of_kind(commands, Offload)
    assert not of_kind(commands, SpawnHost), "slots need their share first"
    assert not sent(commands, RegisterTaskManager)
    assert driver.listed() == []
    commands = driver.task_manager.handle(OffloadCompleted(look.name, look.token, look.work(), None), 0)
    assert len(of_kind(commands, SpawnHost)) == 2
    [registration] = sent(commands, RegisterTaskManager, JOB_MANAGER)
    assert registration.machine == MACHINE
    assert registration.resources["managed_memory_bytes_per_slot"] == GIB
    driver.manager.handle(registration, 0)
    [view] = driver.listed()
    assert (view.name, view.node, view.num_slots, view.slot_memory_bytes) == (driver.address.host, "n1", 2, GIB)
    assert view.machine == MACHINE


@pytest.mark.parametrize("ending", ["failed", "late"])
def test_a_machine_that_cannot_be_looked_at_holds_nothing_up(ending):
    driver = Looking()
    commands = driver.started()
    [look], [timer] = of_kind(commands, Offload), of_kind(commands, StartTimer)
    failed = OffloadCompleted(look.name, look.token, None, StorageError("no disk"))
    commands = driver.task_manager.handle(failed if ending == "failed" else timer.message, 0)
    [registration] = sent(commands, RegisterTaskManager, JOB_MANAGER)
    assert registration.machine is None
    assert registration.resources["managed_memory_bytes_per_slot"] == DEFAULT_SHARE_BYTES
    for event in (timer.message, OffloadCompleted(look.name, look.token, MACHINE, None)):
        assert not driver.task_manager.handle(event, 0), "it has begun already"


def test_a_leader_that_changes_while_it_looks_hears_of_what_was_found():
    driver = Looking()
    [look] = of_kind(driver.started(), Offload)
    leader = Address("jm-2", "jm")
    assert not sent(driver.task_manager.handle(JobManagerChanged(JOB, leader, 2), 0), RegisterTaskManager)
    commands = driver.task_manager.handle(OffloadCompleted(look.name, look.token, MACHINE, None), 0)
    [registration] = sent(commands, RegisterTaskManager, leader)
    assert (registration.epoch, registration.machine) == (2, MACHINE)


# --------------------------------------------------------------------------------------------------------- the machine
def machine(root: Path, **files: str) -> Path:
    texts = {"proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 600 kB\n", "proc/self/cgroup": "0::/a/b\n", **files}
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_containers_limit_counts_where_it_is_below_the_machines(tmp_path):
    assert memory_of(machine(tmp_path / "none")) == (1_000 << 10, 600 << 10)
    limit = {"sys/fs/cgroup/a/memory.max": "409600\n", "sys/fs/cgroup/a/memory.current": "200000\n"}
    limit["sys/fs/cgroup/a/memory.stat"] = "anon 5\ninactive_file 100000\n"
    limit["sys/fs/cgroup/a/b/memory.max"] = "max\n"
    assert memory_of(machine(tmp_path / "two", **limit)) == (409_600, 309_600)
    wide = {"sys/fs/cgroup/a/memory.max": str(1 << 40)}
    assert memory_of(machine(tmp_path / "wide", **wide)) == (1_000 << 10, 600 << 10)
    old = {"proc/self/cgroup": "4:cpu,memory:/x\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "204800"}
    assert memory_of(machine(tmp_path / "one", **old)) == (204_800, 204_800)


def test_this_machine_can_be_looked_at(tmp_path):
    found = examine_machine(str(tmp_path / "not" / "yet"))
    assert found.cores > 0
    assert 0 < found.available_memory_bytes <= found.memory_bytes
    assert 0 < found.free_disk_bytes <= found.disk_bytes
    assert all(one.name and one.addresses for one in found.interfaces)
