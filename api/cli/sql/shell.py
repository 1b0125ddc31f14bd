"""The SQL shell: statements one after the other, typed or from a file, with their results.

A statement that fails is told with its place, and the shell goes on; in a file it is the last one. Ctrl-C ends the
query that runs, and not the shell.

Source: Flink's ``CliClient``, ``SqlClient``.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from headrace.engine.errors import HeadraceError

from ...jobs.progress import ProgressListener, TerminalProgress
from ...sql.parsing.errors import SqlError
from ...sql.parsing.parser import is_complete, pieces_of
from ...table import TableEnvironment
from .completion import completions
from .views import JsonLines, Views

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

    from headrace.engine.protocol.views import JobView

__all__ = ["Shell"]

PROMPT, MORE = "Headrace SQL> ", "> "

HELP = """\
A statement ends with a semicolon. Tab completes, Ctrl-R searches what was typed before, Ctrl-C stops a query.
  SELECT, WITH, VALUES            ask a query; what is shown is said by
                                  SET 'sql-client.execution.result-mode' = 'table', 'changelog' or 'tableau'
  INSERT INTO, EXECUTE STATEMENT SET BEGIN ... END    write tables
  CREATE, DROP, DESCRIBE, SHOW    TABLE, VIEW, DATABASE, CATALOG (SHOW TABLES, SHOW CREATE TABLE t ...)
  USE CATALOG c, USE d            where names are looked up
  SET 'key' = 'value', RESET      how jobs are made; SET alone shows what was set
  EXPLAIN                         how a query would run; EXPLAIN ANALYZE runs it and counts
  EXPLAIN UPGRADE FROM 'path'     what becomes of a savepoint's state under another text
  COMPILE PLAN 'file' FOR, EXECUTE PLAN 'file'        keep how an INSERT is run
  SHOW JOBS, STOP JOB 'id'        what runs behind (SET 'table.dml-sync' = 'false')
  EXPLAIN ANALYZE JOB 'id'        what it has done, and why windows do not fire
  HELP, CLEAR, QUIT"""

_OWN = ("QUIT", "EXIT", "HELP", "CLEAR")


def _nobody(_view: JobView) -> None:
    """Is told of jobs that are not shown."""


class Shell:
    """Runs statements of one program.

    Args:
        env: The program.
        out: Where results and echoes go.
        is_json: Whether all is written as lines of JSON (`JsonLines`).
        is_quiet: Whether the progress of jobs that write tables is not shown.
    """

    def __init__(
        self, env: TableEnvironment, out: TextIO | None = None, *, is_json: bool = False, is_quiet: bool = False
    ) -> None:
        self._env = env
        self._out = out or sys.stdout
        self._json = JsonLines(self._out, env.settings) if is_json else None
        self._views = self._json or Views(self._out, env.settings, is_live=self._out.isatty())
        self._is_quiet = is_quiet

    # ---------------------------------------------------------------------------------------------------------- scripts

    def run_script(self, text: str, name: str, *, echo: bool = True) -> bool:
        """Run the statements of a text in order.

        Args:
            text: The statements.
            name: Of the file, for errors.
            echo: Whether each is shown before its result.

        Returns:
            Whether all have succeeded; the first that fails is told, and the last.
        """
        try:
            pieces = pieces_of(text)
        except SqlError as error:
            return self._failed(error, name, text)
        if self._json is not None:
            self._json.file_begins(is_shown=echo)
            echo = False
        for piece in pieces:
            if self._json is not None:
                self._json.statement_begins()
            if echo:
                shown = piece.strip().replace("\n", f"\n{MORE}")
                self._say(f"{PROMPT}{shown};")
            word = piece.strip().upper()
            if word in ("QUIT", "EXIT"):
                return True
            if word in _OWN:
                self._own(word)
                continue
            try:
                self._run(piece)
            except HeadraceError as error:
                return self._failed(error, name, piece)
            if echo:
                self._say("")
        return True

    def _failed(self, error: HeadraceError, name: str, piece: str) -> bool:
        line, column = getattr(error, "line", None), getattr(error, "column", None)
        if line is None or column is None:
            before = piece[: len(piece) - len(piece.lstrip())]
            line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
        if self._json is not None:
            self._json.failed(error, name, line, column)
            return False
        told = str(error).removeprefix(f"line {line}, column {column}: ")
        sys.stderr.write(f"{name}:{line}:{column}: {told}\n")
        return False

    def _run(self, piece: str) -> None:
        with TerminalProgress() as progress, self._telling(self._json or (_nobody if self._is_quiet else progress)):
            results = self._env.execute_script(piece)
        with self._telling(_nobody):  # of a query one looks at the rows
            for result in results:
                self._views.show(result, is_batch=self._env.mode == "batch")

    @contextmanager
    def _telling(self, listener: ProgressListener) -> Iterator[None]:
        """Inside, jobs are told to a listener."""
        if self._env.mode == "batch":
            with self._env.data_set_environment.telling(listener):
                yield
            return
        streams = self._env.stream_environment
        with streams.changed_apart():
            streams.set_progress_listener(listener)
            yield

    # ------------------------------------------------------------------------------------------------------ interactive

    def talk(self, read: Callable[[], str | None]) -> None:
        """Run what is typed, until the end.

        Args:
            read: Gives the next statements, complete, or one of our own words; None at the end.
        """
        while (text := self._read(read)) is not None:
            word = text.strip().rstrip(";").strip().upper()
            if word in ("QUIT", "EXIT"):
                return
            if word in _OWN:
                self._own(word)
                continue
            try:
                for piece in pieces_of(text):
                    self._run(piece)
            except KeyboardInterrupt:
                self._say("Query canceled.")
            except HeadraceError as error:
                self._told(error)
            except Exception:
                # A bug, or a library's error: it is shown whole, and what was typed and created before is not lost.
                self._say(traceback.format_exc())

    def _read(self, read: Callable[[], str | None]) -> str | None:
        while True:
            try:
                return read()
            except KeyboardInterrupt:
                continue  # what was typed is dropped
            except EOFError:
                return None

    def _told(self, error: HeadraceError) -> None:
        self._say(f"[ERROR] {error}")
        if self._env.settings.value("sql-client.verbose", default=False):
            self._say("".join(traceback.format_exception(error)).rstrip())

    def _own(self, word: str) -> None:
        if word == "HELP":
            self._say(HELP)
        elif word == "CLEAR" and self._out.isatty():
            self._out.write("\x1b[2J\x1b[H")
            self._out.flush()

    @contextmanager
    def warnings(self) -> Iterator[None]:
        """Inside, warnings of what a query will cost are shown with its result."""
        log, handler = logging.getLogger("headrace.table"), logging.StreamHandler(self._out)
        handler.setFormatter(logging.Formatter("[%(levelname)s] %(message)s"))
        log.addHandler(handler)
        try:
            yield
        finally:
            log.removeHandler(handler)

    def _say(self, text: str) -> None:
        self._out.write(f"{text}\n")
        self._out.flush()


def is_finished(text: str) -> bool:
    """Return whether what was typed can be run: it ends with a semicolon, or is a word of the shell's own."""
    return not text.strip() or text.strip().rstrip(";").strip().upper() in _OWN or is_complete(text)


def prompt(env: TableEnvironment, history: Path) -> Callable[[], str | None]:
    """Return what reads statements from a terminal: with history, completion, colours, and lines until a semicolon."""
    session = _session(env, history)
    return lambda: str(session.prompt(PROMPT))


def _session(env: TableEnvironment, history: Path) -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer, Completion
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.lexers import PygmentsLexer
    from pygments.lexers.sql import SqlLexer

    class _Completer(Completer):
        def get_completions(self, document: Any, complete_event: Any) -> Any:
            for text, kind, start in completions(env, document.text_before_cursor, document.text_after_cursor):
                yield Completion(text, start_position=start, display_meta=kind)

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: Any) -> None:
        buffer = event.current_buffer
        if is_finished(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    # What was typed may hold passwords of tables.
    history.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(history, os.O_CREAT | os.O_APPEND, 0o600))
    return PromptSession(
        history=FileHistory(str(history)), completer=_Completer(), complete_while_typing=False, key_bindings=keys,
        multiline=True, prompt_continuation=lambda width, line, wrap: MORE.rjust(width),
        lexer=PygmentsLexer(SqlLexer), enable_history_search=True,
    )  # fmt: skip
