"""The commands ``headrace state``: look into checkpoints from a terminal.

``ls`` lists operators and states, ``show`` prints a state or writes it to a file, ``diff`` compares two snapshots,
``verify`` reads every file and compares hashes. All of them need the checkpoint alone, not the job's program. ``ask``
asks a running job (`state_of_key`).
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace.engine.errors import CheckpointError, ConfigurationError
from headrace.state.open.names import TIMERS
from headrace.state.values.json_text import json_text

from . import state_of_key

if TYPE_CHECKING:
    import pyarrow as pa

    from ..jobs.snapshot_info import StateInfo
    from ..jobs.snapshots import Snapshot

__all__ = ["add_commands"]

_TERMINAL_LIMIT = 20
_TIMES = ("window_start", "window_end", "time")
_MAX_CELL = 60


def add_commands(commands: Any) -> None:
    """Add ``state`` to the command line.

    Args:
        commands: The sub-parsers of ``headrace``.
    """
    state = commands.add_parser("state", help="look into checkpoints and savepoints, and ask running jobs")
    inner = state.add_subparsers(dest="state_command", metavar="COMMAND", required=True)
    path = "a manifest, a checkpoint or a folder of checkpoints, whose newest is meant; any file system"

    ls = inner.add_parser("ls", help="operators and their states")
    ls.add_argument("path", help=path)
    ls.add_argument("--count", action="store_true", help="read the states: entries, and types that were not declared")
    ls.add_argument("--allow-pickle", action="store_true", help="with --count: build pickled objects, which runs code")
    ls.set_defaults(function=_ls)

    show = inner.add_parser("show", help="what a state holds")
    show.add_argument("path", help=path)
    show.add_argument("uid", help="the operator's uid or name")
    show.add_argument("state", nargs="?", help="the state; without it: the operator's states, timers and windows")
    show.add_argument("--limit", type=int, metavar="N", help=f"rows at most (a table: {_TERMINAL_LIMIT}; 0: all)")
    show.add_argument("--key", action="append", metavar="KEY", help="only this key, as JSON or plain text; repeatable")
    show.add_argument("--format", choices=("table", "csv", "jsonl", "parquet"), default=None, help="of the output")
    show.add_argument("--output", "-o", metavar="FILE", help="where to; by its name also the format")
    show.add_argument("--allow-pickle", action="store_true", help="build pickled objects: runs code they name")
    show.set_defaults(function=_show)

    diff = inner.add_parser("diff", help="compare two snapshots, state by state; status 1 if they differ")
    diff.add_argument("path", help=path)
    diff.add_argument("other", help="the other one")
    diff.add_argument("--allow-pickle", action="store_true", help="build pickled objects: runs code they name")
    diff.set_defaults(function=_diff)

    verify = inner.add_parser("verify", help="read every file and compare hashes; status 1 if one is wrong")
    verify.add_argument("path", help=path)
    verify.set_defaults(function=_verify)
    state_of_key.add_command(inner)
    for command in (ls, show, diff, verify):
        command.add_argument(
            "--key-file",
            metavar="FILE",
            help="take only what is signed with one of these keys ($HEADRACE_CHECKPOINT_KEY_FILE)",
        )


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _ls(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ..jobs.snapshots import Snapshot

    with Snapshot.open(options.path, key_file=options.key_file) as snapshot:
        operators = snapshot.operators()
        taken = snapshot.timestamp.astimezone()
        _print(f"checkpoint {snapshot.checkpoint_id} of {snapshot.job_name!r} ({snapshot.job_id}), {taken:%F %T %Z}")
        num_files = sum(operator.num_files for operator in operators)
        size = _size(sum(operator.num_bytes for operator in operators))
        _print(f"{len(operators)} operators, {_counted(num_files, 'file')}, {size}\n")
        console = Console(soft_wrap=False)
        for operator in operators:
            name = f" ({operator.name})" if operator.name != operator.uid else ""
            _print(
                f"{operator.uid}{name}: parallelism {operator.parallelism} of at most {operator.max_parallelism}, "
                f"{_counted(operator.num_files, 'file')}, {_size(operator.num_bytes)}"
            )
            table = Table(box=None, padding=(0, 2, 0, 2), header_style="dim")
            names = ("state", "kind", "type", "files", "size", *(("entries",) if options.count else ()))
            for column in names:
                table.add_column(column, justify="right" if column in ("files", "size", "entries") else "left")
            for state in snapshot.states(operator.uid, look=options.count, allow_pickle=options.allow_pickle):
                counted = () if state.num_entries is None else (f"{state.num_entries:,}",)
                shared = "*" if state.shares_files else ""
                cells = (state.name, _kind(state), _types(state), f"{state.num_files}{shared}", _size(state.num_bytes))
                table.add_row(*map(Text, (*cells, *counted)))
            console.print(table)
            if any(state.shares_files for state in snapshot.states(operator.uid)):
                _print("  * one database per subtask holds all keyed states of the operator")
            _print("")
    return 0


def _kind(state: StateInfo) -> str:
    is_timers = state.kind == "table" and state.windowed and state.name in TIMERS
    kind = "timers" if is_timers else state.kind
    parts = [kind, f"({state.backend})" if state.backend != "operator" else ""]
    if state.windowed and not is_timers and state.kind != "columnar":
        parts.append("windowed")
    if state.has_ttl:
        parts.append("ttl" if state.ttl_ms is None else f"ttl {datetime.timedelta(milliseconds=state.ttl_ms)}")
    if state.queryable is not None:
        parts.append(f"queryable as {state.queryable}")
    return " ".join(filter(None, parts))


def _types(state: StateInfo) -> str:
    if state.num_entries == 0:
        return "empty"
    value = state.value_type or "not declared"
    if state.map_key_type is not None:
        value = f"{state.map_key_type} -> {value}"
    return value if state.key_type is None else f"{state.key_type}: {value}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _size(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{num_bytes} B"


# ---------------------------------------------------------------------------------------------------------------- show
def _show(options: argparse.Namespace) -> int:
    from ..jobs.snapshots import Snapshot

    with Snapshot.open(options.path, key_file=options.key_file) as snapshot:
        if options.state is None:
            return _show_operator(snapshot, options.uid, allow_pickle=options.allow_pickle)
        form = options.format or _format_of(options.output)
        if form == "parquet" and options.output is None:
            message = "Parquet goes into a file: name one with -o"
            raise ConfigurationError(message)
        limit = options.limit
        if limit is None:
            limit = _TERMINAL_LIMIT if form == "table" else 0
        keys = None if options.key is None else [_key(text) for text in options.key]
        batches = snapshot.read_batches(options.uid, options.state, keys=keys, allow_pickle=options.allow_pickle)
        if form == "table":
            _show_table(_limited(batches, limit + 1 if limit else 0), limit, options.output)
            return 0
        num_rows = _export(_limited(batches, limit), form, options.output)
        if options.output is not None:
            _print(f"{_counted(num_rows, 'row')} written to {options.output}")
    return 0


def _key(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return tuple(value) if isinstance(value, list) else value


def _format_of(output: str | None) -> str:
    suffix = "" if output is None else output.rpartition(".")[2].lower()
    return {"csv": "csv", "jsonl": "jsonl", "parquet": "parquet"}.get(suffix, "table")


def _limited(batches: Iterator[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    left = limit
    for index, batch in enumerate(batches):
        if limit and left <= 0 and index:
            return
        yield batch.slice(0, left) if limit else batch
        left -= batch.num_rows


def _show_operator(snapshot: Snapshot, uid: str, *, allow_pickle: bool) -> int:
    operator = snapshot.operator(uid)
    _print(
        f"{operator.uid} ({operator.name}): parallelism {operator.parallelism} of at most {operator.max_parallelism}"
    )
    for state in snapshot.states(operator.uid, look=True, allow_pickle=allow_pickle):
        _print(f"  {state.name}: {_kind(state)}, {_types(state)}, {state.num_entries:,} rows")
    timers, windows = snapshot.timers(operator.uid), snapshot.windows(operator.uid, allow_pickle=allow_pickle)
    if timers.num_rows:
        _print(f"\n{_counted(timers.num_rows, 'timer')}; the first:")
        _show_table(iter(timers.sort_by("time").slice(0, 5).to_batches()), 5, None)
    if windows.num_rows:
        _print(f"\n{_counted(windows.num_rows, 'window')}; the first:")
        _show_table(iter(windows.slice(0, 5).to_batches()), 5, None)
    return 0


def _show_table(batches: Iterator[pa.RecordBatch], limit: int, output: str | None) -> None:
    """Print rows for people; one more than the limit says that there are more."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold")
    num_rows, has_more = 0, False
    for batch in batches:
        if not table.columns:
            for field in batch.schema:
                is_number = str(field.type).startswith(("int", "uint", "float", "double"))
                table.add_column(field.name, justify="right" if is_number else "left", overflow="fold")
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if limit and num_rows >= limit:
                has_more = True
                break
            num_rows += 1
            table.add_row(*(Text(_cell(name, value)) for name, value in zip(batch.schema.names, row, strict=True)))
    with _opened(output) as file:
        Console(file=file, width=None if output is None else 200).print(table)
        file.write(f"{_counted(num_rows, 'row')}{' and more: --limit 0 shows all' if has_more else ''}\n")


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, int) and name in _TIMES:
        return _time_text(value)
    if isinstance(value, (int, str)):
        text = str(value)
    elif isinstance(value, datetime.datetime):
        text = value.isoformat(sep=" ", timespec="milliseconds")
    else:
        text = repr(value)
    return text if len(text) <= _MAX_CELL else f"{text[: _MAX_CELL - 3]}..."


def _time_text(epoch_ms: int) -> str:
    """Times people can read; what is no time of this age stays a number."""
    if not 0 < epoch_ms < 4_102_444_800_000:
        return str(epoch_ms)
    time = datetime.datetime.fromtimestamp(epoch_ms / 1_000, datetime.timezone.utc)
    return f"{time:%Y-%m-%d %H:%M:%S}.{epoch_ms % 1_000:03}Z"


@contextmanager
def _opened(output: str | None) -> Iterator[Any]:
    if output is None:
        yield sys.stdout
    else:
        with open(output, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            yield file


def _export(batches: Iterator[pa.RecordBatch], form: str, output: str | None) -> int:
    """Write rows to a file, batch by batch."""
    num_rows = 0
    if form == "parquet":
        import pyarrow.parquet as pq

        writer = None
        try:
            for batch in batches:
                writer = writer or pq.ParquetWriter(output, batch.schema)
                writer.write_batch(batch)
                num_rows += batch.num_rows
        finally:
            if writer is not None:
                writer.close()
        return num_rows
    import csv

    with _opened(output) as file:
        sheet = csv.writer(file)
        for index, batch in enumerate(batches):
            names = batch.schema.names
            if form == "csv" and not index:
                sheet.writerow(names)
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                num_rows += 1
                if form == "csv":
                    sheet.writerow([_csv_value(value) for value in row])
                else:
                    file.write(f"{json_text(dict(zip(names, row, strict=True)), str)}\n")
    return num_rows


def _csv_value(value: Any) -> Any:
    """A text as it stands in JSON, without the quotes; lists, dicts and tuples as JSON."""
    if value is None or isinstance(value, (int, float, str)):
        return value
    text = json_text(value, str)
    return json.loads(text) if text[0] == '"' else text


# ------------------------------------------------------------------------------------------------------ diff and verify
def _diff(options: argparse.Namespace) -> int:
    from ..jobs.snapshots import Snapshot

    with (
        Snapshot.open(options.path, key_file=options.key_file) as one,
        Snapshot.open(options.other, key_file=options.key_file) as other,
    ):
        compared = one.diff(other, allow_pickle=options.allow_pickle)
    changed = [row for row in compared.to_pylist() if row["only_here"] or row["only_there"] or row["different"]]
    if not changed:
        _print(f"the same: {compared.num_rows} states")
        return 0
    for row in changed:
        parts = [
            f"{row[count]:,} {text}"
            for count, text in (
                ("only_here", "only in the first"),
                ("only_there", "only in the second"),
                ("different", "different"),
                ("same", "the same"),
            )
            if row[count]
        ]
        _print(f"{row['operator']}, {row['state']}: {', '.join(parts)}")
    _print(f"{len(changed)} of {compared.num_rows} states differ")
    return 1


def _verify(options: argparse.Namespace) -> int:
    from ..jobs.snapshots import Snapshot

    try:
        with Snapshot.open(options.path, key_file=options.key_file) as snapshot:
            problems = snapshot.verify()
            operators = snapshot.operators()
            number = snapshot.checkpoint_id
    except CheckpointError as error:
        _print(f"FAIL  {error}")
        return 1
    for problem in problems:
        _print(f"FAIL  {problem.path}: {problem.reason} (operator {problem.operator!r}, state {problem.state!r})")
    num_files = sum(operator.num_files for operator in operators)
    size = _size(sum(operator.num_bytes for operator in operators))
    if not problems:
        _print(f"ok    checkpoint {number}: manifest and all {num_files} files ({size}) are as they were written")
    else:
        _print(f"{len(problems)} of {num_files} files of checkpoint {number} are wrong")
    return 1 if problems else 0
