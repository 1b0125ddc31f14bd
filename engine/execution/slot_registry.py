"""The JobManager's view of its TaskManagers: who is registered, which slots live, who gives signs of life.

A slot is named by its process, whose name is never used again. A process once taken for dead stays dead here, even if
its TaskManager goes on announcing it (it was cut off, not gone): it may still run tasks of an older deployment, so it
is reported as to be killed instead of being offered again.

Source: Flink's ``DefaultDeclarativeSlotPool`` and ``HeartbeatManager``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..kernel.machine import Address
from ..protocol.messages import Heartbeat, RegisterTaskManager
from ..protocol.views import SlotInfo, TaskManagerView

__all__ = ["Registration", "SlotRegistry"]


@dataclass(slots=True)
class _TaskManager:
    address: Address
    slots: dict[str, SlotInfo]
    revision: int
    view: TaskManagerView
    # Heartbeat rounds in a row without an answer: counted, not timed, so that a jumping clock kills none.
    num_unanswered: int = 0


@dataclass(frozen=True, slots=True)
class Registration:
    """What an announcement changed.

    Attributes:
        lost_hosts: Slot processes that are gone since the last announcement.
        hosts_to_kill: Processes announced that were taken for dead before.
    """

    lost_hosts: list[str] = field(default_factory=list)
    hosts_to_kill: list[str] = field(default_factory=list)


class SlotRegistry:
    """The slots of one job."""

    def __init__(self) -> None:
        self._task_managers: dict[str, _TaskManager] = {}
        # TaskManagers whose process has ended: what they have said before may still be under way.
        self._dead: set[str] = set()
        # Slot processes taken for dead while their TaskManager may not know it.
        self._condemned: set[str] = set()

    @property
    def num_slots(self) -> int:
        """Slots that could host a task now."""
        return sum(len(task_manager.slots) for task_manager in self._task_managers.values())

    def slots(self) -> dict[str, list[SlotInfo]]:
        """Return the live slots of each TaskManager, by name and index."""
        return {
            name: sorted(task_manager.slots.values(), key=lambda slot: slot.index)
            for name, task_manager in sorted(self._task_managers.items())
        }

    def all_slots(self) -> list[SlotInfo]:
        """Return all live slots, TaskManager by TaskManager."""
        return [slot for slots in self.slots().values() for slot in slots]

    def views(self) -> list[TaskManagerView]:
        """Return the TaskManagers for people, by name."""
        return [task_manager.view for _, task_manager in sorted(self._task_managers.items())]

    def address_of(self, task_manager: str) -> Address | None:
        """Return where a TaskManager is; None if it is not registered."""
        found = self._task_managers.get(task_manager)
        return None if found is None else found.address

    def owner_of(self, slot_host: str) -> str | None:
        """Return the TaskManager of a live slot process."""
        for name, task_manager in self._task_managers.items():
            if slot_host in task_manager.slots:
                return name
        return None

    def register(self, message: RegisterTaskManager) -> Registration:
        """Take an announcement; an old or doubled one changes nothing, nor does one of a TaskManager that has ended."""
        if message.task_manager in self._dead:
            return Registration()
        known = self._task_managers.get(message.task_manager)
        if known is not None and message.revision <= known.revision:
            known.num_unanswered = 0
            return Registration()
        announced = {slot.address.host: slot for slot in message.slots}
        condemned = [host for host in announced if host in self._condemned]
        for host in condemned:
            del announced[host]
        lost = [host for host in known.slots if host not in announced] if known is not None else []
        self._task_managers[message.task_manager] = _TaskManager(
            message.address, announced, message.revision, message.view()
        )
        return Registration(lost, condemned)

    def lose_slot(self, task_manager: str, slot_host: str) -> bool:
        """Forget a slot whose process is gone. Gives whether it was counted on."""
        self._condemned.add(slot_host)  # an announcement made before its death may still be under way
        found = self._task_managers.get(task_manager)
        return found is not None and found.slots.pop(slot_host, None) is not None

    def lose_task_manager(self, task_manager: str) -> list[str]:
        """Forget a TaskManager that is gone or out of reach. Gives the slot processes that are lost with it."""
        found = self._task_managers.pop(task_manager, None)
        if found is None:
            return []
        self._condemned.update(found.slots)
        return list(found.slots)

    def bury_task_manager(self, task_manager: str) -> list[str]:
        """Forget a TaskManager whose process has ended, for good. Gives the slot processes that are lost with it."""
        self._dead.add(task_manager)
        return self.lose_task_manager(task_manager)

    def heartbeat(self, message: Heartbeat) -> None:
        """Take a sign of life."""
        found = self._task_managers.get(message.task_manager)
        if found is not None:
            found.num_unanswered = 0

    def begin_heartbeats(self, max_unanswered: int) -> tuple[list[Address], list[str]]:
        """Begin a round of heartbeats.

        Args:
            max_unanswered: Rounds that may go unanswered.

        Returns:
            Whom to ask, and the names of those who have been silent for too long.
        """
        silent: list[str] = []
        asked: list[Address] = []
        for name, task_manager in self._task_managers.items():
            if task_manager.num_unanswered > max_unanswered:
                silent.append(name)
            else:
                task_manager.num_unanswered += 1
                asked.append(task_manager.address)
        return asked, silent
