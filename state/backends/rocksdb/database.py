"""One RocksDB database of one keyed operator subtask, and the memory that the databases of a slot share.

The database is a cache of the newest checkpoint plus what has happened since: a crash throws it away. So it has no
write-ahead log, and it is never opened where an earlier attempt left it. Rows are bytes (rocksdict's raw mode): its own
mode would pickle, and read options from the directory it opens.

*Memory.* All databases of a slot share one block cache, and one `WriteBufferManager` that charges memtables to that
cache; index and filter blocks live in the cache too. Of the slot's managed memory one half, at most 256 MiB, is what
tables keep as Python objects (`headrace.state.backends.rocksdb.rows`); the rest is the cache, of which memtables may
take one half. Tables that operators keep in columns (`headrace.engine.tables`) have one half too, in place of objects.

*Options* and why:

===========================  ==========================================================================================
bloom filter, 10 bits        a key without state costs no read of a block (1 % false positives); also in memtables
LZ4, all levels              half the disk and upload for little time
target file size 16 MB       a compaction rewrites, and so a checkpoint uploads, little more than what has changed
dynamic level bytes          the last level is full, so space amplification stays near 1.1
compaction on deletions      timers and windows delete what they write; their tombstones must not pile up
small manifest, few logs     they are copied by every checkpoint
paranoid checks (default)    a block whose checksum is wrong is an error, never a value
===========================  ==========================================================================================

Source: Flink's ``RocksDBResourceContainer``, ``RocksDBMemoryControllerUtils``; RocksDB's tuning guide.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from ...errors import StorageError

__all__ = ["Database", "SlotMemory", "new_batch"]

_MIN_CACHE_BYTES = 4 << 20
_MIN_WRITE_BUFFER_BYTES = 1 << 20
_MAX_MEMTABLE_BYTES = 64 << 20
"""What a snapshot may have to flush of a database, as Flink has it."""
_MAX_OBJECT_BYTES = 256 << 20
"""What a snapshot may have to encode."""


def _refuse_to_unpickle(_data: bytes) -> NoReturn:
    message = "a state database never unpickles"
    raise StorageError(message)


class SlotMemory:
    """What the state databases of one slot share.

    Args:
        managed_bytes: The slot's managed memory.

    Attributes:
        object_bytes: How much of it tables may keep as Python objects, all together.
    """

    _of_slot: weakref.WeakValueDictionary[tuple[str, int], SlotMemory] = weakref.WeakValueDictionary()
    _lock = threading.Lock()

    def __init__(self, managed_bytes: int) -> None:
        self.managed_bytes = managed_bytes
        self.object_bytes = min(managed_bytes // 2, _MAX_OBJECT_BYTES)
        cache_bytes = max(managed_bytes - self.object_bytes, _MIN_CACHE_BYTES)
        self.cache = Cache(cache_bytes)
        self.write_buffer_bytes = max(cache_bytes // 2, _MIN_WRITE_BUFFER_BYTES)
        self.write_buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            self.write_buffer_bytes, False, self.cache
        )
        # Whether tables have taken their part of the cache.
        self._has_tables = False
        # Open databases: they share the memory for objects evenly.
        self.databases: weakref.WeakSet[Database] = weakref.WeakSet()

    @classmethod
    def of_slot(cls, slot: str, managed_bytes: int) -> SlotMemory:
        """Return the memory of a slot, made on first use; it goes when nothing uses it."""
        with cls._lock:
            memory = cls._of_slot.get((slot, managed_bytes))
            if memory is None:
                memory = cls._of_slot[(slot, managed_bytes)] = cls(managed_bytes)
            return memory

    def object_share(self) -> int:
        """Return how many bytes of objects one database may keep now."""
        return self.object_bytes // max(len(self.databases), 1)

    def table_share(self) -> int:
        """Return how many bytes tables of one operator may hold now, beside their runs.

        They may have one half of the slot's memory, whatever it is: a snapshot writes only what has changed in them.
        Where that is more than objects have, the cache gives it.
        """
        room = self.managed_bytes // 2
        if room > self.object_bytes and not self._has_tables:
            self.cache.set_capacity(max(self.managed_bytes - room, _MIN_CACHE_BYTES))
        self._has_tables = True
        return room // max(len(self.databases), 1)

    def cache_share(self) -> int:
        """Return how many bytes of blocks and memtables there are now, of each database alike."""
        return int(self.cache.get_usage()) // max(len(self.databases), 1)

    def options(self) -> Options:
        """Return the options of a database; see the module's docstring."""
        blocks = BlockBasedOptions()
        blocks.set_block_cache(self.cache)
        blocks.set_cache_index_and_filter_blocks(True)
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
        blocks.set_bloom_filter(10, False)
        blocks.set_format_version(5)
        options = Options(raw_mode=True)
        options.set_block_based_table_factory(blocks)
        options.set_write_buffer_manager(self.write_buffers)
        memtable_bytes = min(self.write_buffer_bytes // 2, _MAX_MEMTABLE_BYTES)
        options.set_write_buffer_size(max(memtable_bytes, _MIN_WRITE_BUFFER_BYTES))
        options.set_max_write_buffer_number(3)
        options.set_memtable_prefix_bloom_ratio(0.02)
        options.set_memtable_whole_key_filtering(True)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_target_file_size_base(16 << 20)
        options.set_max_bytes_for_level_base(64 << 20)
        options.set_level_compaction_dynamic_level_bytes(True)
        options.add_compact_on_deletion_collector_factory(4_096, 2_048, 0.5)
        options.set_max_background_jobs(2)
        options.set_max_open_files(1_024)
        options.set_max_manifest_file_size(1 << 20)
        options.set_manifest_preallocation_size(64 << 10)
        options.set_keep_log_file_num(1)
        options.set_max_log_file_size(1 << 20)
        options.set_stats_dump_period_sec(0)
        options.set_avoid_unnecessary_blocking_io(True)
        return options


_STALL_POLL_S = 0.002
"""A flush takes tens of milliseconds."""

_MAX_STALL_POLLS = 30_000
"""After a minute without room the write fails: a disk that hangs must not hang the job."""


def new_batch() -> WriteBatch:
    """Writes that are to be done at once, of raw bytes."""
    return WriteBatch(raw_mode=True)


class Database:
    """A database of bytes.

    Args:
        path: Its directory; must not exist for a new database, and hold all its files for a restored one.
        memory: The slot's.
        is_restored: Whether it must exist.
        context: What errors name: operator, subtask.

    Raises:
        StorageError: From every method, if the database or its disk fails.
    """

    def __init__(self, path: str, memory: SlotMemory, *, is_restored: bool, context: dict[str, Any]) -> None:
        self.path = path
        self._context = context
        self._write_options = WriteOptions()
        # An attribute, whatever its stub says.
        self._write_options.disable_wal = True  # type: ignore[assignment, method-assign]
        self._impatient_options = WriteOptions()
        self._impatient_options.disable_wal = True  # type: ignore[assignment, method-assign]
        self._impatient_options.no_slowdown = True
        options = memory.options()
        # A restored database that is not there must not silently be an empty one.
        options.create_if_missing(not is_restored)
        options.set_error_if_exists(not is_restored)
        try:
            self._db = Rdict(path, options)
        except Exception as error:
            self._fail("open", error)
        self._db.set_loads(_refuse_to_unpickle)
        self._db.set_write_options(self._write_options)
        self._is_closed = False
        # Keeps cache and write buffers, which the options only lend to the database.
        self._memory = memory
        memory.databases.add(self)

    def _fail(self, operation: str, error: Exception, state: str | None = None) -> NoReturn:
        context = {**self._context, "operation": operation}
        if state is not None:
            context["state"] = state
        message = f"the local state database failed: {error}"
        raise StorageError(message, **context, path=self.path) from error

    def get(self, key: bytes, state: str) -> bytes | None:
        """Return the row of a key."""
        try:
            return self._db.get(key)
        except Exception as error:
            self._fail("read", error, state)

    def get_all(self, keys: list[Any], state: str) -> list[bytes | None]:
        """Return the rows of many keys; cheapest if these ascend."""
        try:
            found: Any = self._db.get(keys)
            return list(found)
        except Exception as error:
            self._fail("read", error, state)

    def write(self, batch: WriteBatch, state: str) -> None:
        """Do all writes of a batch at once."""
        try:
            self._wait_for_room()
            self._db.write(batch, self._write_options)
        except Exception as error:
            self._fail("write", error, state)

    def _wait_for_room(self) -> None:
        """Wait while the database must first bring memory to disk.

        It would wait by itself, but on a full disk for ever: until somebody makes room. What does not wait is told of
        the error. The write that asks is an empty one, as a batch that is refused is used up.

        Raises:
            TimeoutError: If there is none within a minute.
        """
        for _ in range(_MAX_STALL_POLLS):
            try:
                self._db.write(new_batch(), self._impatient_options)
            except Exception as error:
                if "Write stall" not in str(error):
                    raise
            else:
                return
            time.sleep(_STALL_POLL_S)
        message = f"no room for a write in {_MAX_STALL_POLLS * _STALL_POLL_S:.0f} s: the disk takes nothing"
        raise TimeoutError(message)

    def delete_range(self, first: bytes, past: bytes, state: str) -> None:
        """Delete all rows from ``first`` up to, without, ``past``."""
        batch = new_batch()
        batch.delete_range(first, past)
        self.write(batch, state)

    def scan(self, ranges: Sequence[tuple[bytes, bytes]], state: str) -> Iterator[tuple[bytes, bytes]]:
        """Return the rows of some ranges, as of now.

        Args:
            ranges: Of each its lowest key and the one past its highest; ascending.
            state: For errors.
        """
        if not ranges:
            return iter(())
        try:
            iterator = self._db.iter(_bounded(ranges[-1][1]))
        except Exception as error:
            self._fail("read", error, state)
        return self._scanned(iterator, ranges, state)

    def _scanned(
        self, iterator: RdictIter, ranges: Sequence[tuple[bytes, bytes]], state: str
    ) -> Iterator[tuple[bytes, bytes]]:
        try:
            for first, past in ranges:
                iterator.seek(first)
                while iterator.valid():
                    key = iterator.key()
                    if key >= past:
                        break
                    yield key, iterator.value()
                    iterator.next()
            iterator.status()
        except Exception as error:
            self._fail("read", error, state)

    def last_key(self, first: bytes, past: bytes, state: str) -> bytes | None:
        """Return the highest key from ``first`` up to, without, ``past``."""
        try:
            iterator = self._db.iter(_bounded(past))
            iterator.seek_for_prev(past)
            key: bytes | None = iterator.key() if iterator.valid() else None
            iterator.status()
        except Exception as error:
            self._fail("read", error, state)
        return key if key is not None and first <= key < past else None

    def distinct_prefixes(
        self, first: bytes, past: bytes, size_of: Callable[[bytes], int], state: str
    ) -> Iterator[tuple[bytes, int | None]]:
        """Skip through the rows of a range, from one prefix to the next.

        Gives each prefix with the number of its rows, if that is small; else with None.

        Args:
            first: Where to begin.
            past: Where to end.
            size_of: Gives the length of a row's prefix, of the row's key.
            state: For errors.
        """
        try:
            iterator = self._db.iter(_bounded(past))
            iterator.seek(first)
            while iterator.valid():
                key = iterator.key()
                prefix = key[: size_of(key)]
                # The next prefix is often the next row: a step is cheaper than a search.
                for num_rows in range(1, _STEPS_BEFORE_SEARCH + 1):
                    iterator.next()
                    if not iterator.valid() or not iterator.key().startswith(prefix):
                        yield prefix, num_rows
                        break
                else:
                    iterator.seek(prefix + _ABOVE_ALL)
                    yield prefix, None
            iterator.status()
        except Exception as error:
            self._fail("read", error, state)

    def checkpoint(self, path: str) -> list[str]:
        """Make a copy of everything as of now, with hard links.

        Args:
            path: The copy's directory, on the same disk; must not exist.

        Returns:
            The names of its files but the write-ahead log, which is empty, and rocksdict's own note.
        """
        try:
            self._db.flush(True)  # releases the interpreter's lock, which making the checkpoint does not
            Checkpoint(self._db).create_checkpoint(path)
            names = sorted(os.listdir(path))
        except Exception as error:
            self._fail("checkpoint", error)
        return [name for name in names if not name.endswith(".log") and name != "rocksdict-config.json"]

    def is_empty(self) -> bool:
        """Return whether there is no row."""
        return next(self.scan(((b"", b"\xff" * 8),), ""), None) is None

    def property_of(self, name: str) -> int:
        """Return one of RocksDB's integer properties; 0 if it has none of that name."""
        return self._db.property_int_value(name) or 0

    def close(self) -> None:
        """Close the database. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._memory.databases.discard(self)
            try:
                self._db.close()
            except Exception as error:
                self._fail("close", error)


_ABOVE_ALL = b"\xff" * 4
_STEPS_BEFORE_SEARCH = 8


def _bounded(past: bytes) -> ReadOptions:
    options = ReadOptions()
    options.set_iterate_upper_bound(past)
    return options
