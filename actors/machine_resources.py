"""Looks at the machine that this process runs on: cores, memory, disk, network.

A container's limits count where they are below the machine's: its memory is what the kernel kills for. They are read
from the control groups of the process (versions 2 and 1), each up to the root, as any group may have a limit. Whatever
cannot be read is left out; only a process that knows nothing of its memory says so by 0.

Source: Flink's ``HardwareDescription``; the kernel's ``cgroup-v2.rst``, ``proc(5)``, ``netdevice(7)``.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

from headrace.engine.kernel.slot_resources import MachineResources, NetworkInterface

__all__ = ["examine_machine", "memory_of"]

_UNLIMITED = 1 << 60
"""Version 1 has no word for it: it gives the largest number of pages."""

_SIOCGIFADDR = 0x8915


def examine_machine(local_directory: str | None) -> MachineResources:
    """Return what the machine has and has left.

    Args:
        local_directory: Where slots keep local files; None for the system's directory for temporary files.

    Raises:
        OSError: If there is no disk for these files.
    """
    root = Path("/")
    disk = local_directory or tempfile.gettempdir()
    memory_bytes, available_bytes = memory_of(root)
    usage = shutil.disk_usage(_existing(Path(disk)))
    return MachineResources(
        cores=_cores(root),
        memory_bytes=memory_bytes,
        available_memory_bytes=available_bytes,
        disk=disk,
        disk_bytes=usage.total,
        free_disk_bytes=usage.free,
        interfaces=tuple(_interfaces(root)),
        host_name=socket.gethostname(),
    )


def _existing(path: Path) -> Path:
    """The directory, or the one that it will be made in."""
    return next((folder for folder in (path, *path.absolute().parents) if folder.exists()), Path("/"))


# -------------------------------------------------------------------------------------------------------------- memory
def memory_of(root: Path) -> tuple[int, int]:
    """Return memory in all and available, bytes; 0 where nothing says so.

    Args:
        root: The directory that ``proc`` and ``sys`` are in.
    """
    total, available = _machine_memory(root)
    for limit, used in _memory_limits(root):
        if total and limit >= total:
            continue
        total, available = limit, min(available or limit, max(limit - used, 0))
    return total, min(available, total)


def _machine_memory(root: Path) -> tuple[int, int]:
    fields: dict[str, int] = {}
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()[:1]
        if number and number[0].isdecimal():
            fields[name] = int(number[0]) << 10
    if "MemTotal" in fields:
        return fields["MemTotal"], fields.get("MemAvailable", fields.get("MemFree", 0))
    try:  # no Linux
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0, 0
    return total, total


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use of each control group that this process is in and that has a limit."""
    for group in _groups(root, ""):
        limit = _number(group / "memory.max")
        if limit is not None:
            # Cached files count as used, and give way.
            yield limit, (_number(group / "memory.current") or 0) - _statistic(group, "inactive_file")
    for group in _groups(root, "memory"):
        limit = _number(group / "memory.limit_in_bytes")
        if limit is not None and limit < _UNLIMITED:
            used = _number(group / "memory.usage_in_bytes") or 0
            yield limit, used - _statistic(group, "total_inactive_file")


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The directories of this process's control groups, innermost first; ``controller`` is empty for version 2."""
    mount = root / "sys/fs/cgroup" / controller
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            group = mount / path.strip("/")
            # Within a container the path may be that of the machine, which is not there: the mount is the group.
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(mount))


def _statistic(group: Path, name: str) -> int:
    for line in _text(group / "memory.stat").splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdecimal():
            return int(value)
    return 0


# --------------------------------------------------------------------------------------------------------------- cores
def _cores(root: Path) -> float:
    count = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    for group in _groups(root, ""):
        quota, _, period = _text(group / "cpu.max").strip().partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period):
            count = min(count, int(quota) / int(period))
    for group in _groups(root, "cpu"):
        limit, span = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        if limit and span:
            count = min(count, limit / span)
    return count


# ------------------------------------------------------------------------------------------------------------- network
def _interfaces(root: Path) -> Iterator[NetworkInterface]:
    """Those that have an address; loopback only if there is no other."""
    found = [NetworkInterface(name, addresses) for name in _interface_names() if (addresses := _addresses(root, name))]
    reachable = [one for one in found if not all(ipaddress.ip_address(text).is_loopback for text in one.addresses)]
    yield from reachable or found


def _interface_names() -> list[str]:
    try:
        return [name for _, name in socket.if_nameindex()]
    except (OSError, AttributeError):
        return []


def _addresses(root: Path, name: str) -> tuple[str, ...]:
    found = []
    with contextlib.suppress(OSError, ImportError):
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            found.append(socket.inet_ntoa(answer[20:24]))
    for line in _text(root / "proc/net/if_inet6").splitlines():
        fields = line.split()
        if fields and fields[-1] == name:
            found.append(str(ipaddress.IPv6Address(bytes.fromhex(fields[0]))))
    return tuple(found)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None
