"""Keeping passwords out of what people see: texts are masked, and places that are kept and shown may hold none.

Errors end in job views, histories, logs and terminals. So every error of ours masks its text (`masked`): passwords of
URLs, and what is named like a secret: ``name=value``, ``name: value``, ``--name value`` of a command line, the same as
Python, JSON or YAML write it, and HTTP's ``Authorization``. Masking goes too far rather than not far enough.

A directory of checkpoints, savepoints or output is part of all these, of manifests and of settings, and a program has
to be able to use it again. It cannot be masked, so one that holds a password (`secret_in`) is refused where places are
taken: `headrace.state.files.filesystem.absolute_uri`.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

__all__ = ["MASK", "masked", "secret_in"]

MASK = "***"

_SECRET = re.compile(
    r"(?i)password|passwd|passphrase|secret|api[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key|auth[_-]?token"
    r"|(?:session|access|sas|refresh|bearer|api)[_-]?token|access[_-]?signature|encryption[_-]?key|credential"
    r"|(?:^|[._-])(?:pwd|passfile|sslkey)\Z"
)
"""What the name of a secret has in it, or is."""

# A port is no password: ``://host:8265/`` holds none.
_USER = re.compile(r"""://[^\s/:@'"]*:(?!\d+(?:[/?#\s'",;)\]]|$))""")

# ``--name value``, ``'--name', 'value'``; ``name=value``, ``'name': 'value'``, ``name: value``, ``('name', 'value')``;
# also behind a newline that is written as Python writes it.
_NAME = re.compile(
    r"""(?:\\[nrt]|(?<![\w.-]))(?:(?P<option>--?[A-Za-z][\w.-]*)(?:[ \t]+(?!-)|\\*['"],\s*b?)"""
    r"""|(?P<name>[\w.-]+)(?:\s*=\s*|\\*['"]\s*:\s*b?|(?P<colon>[ \t]*:(?!//)[ \t]*)|(?P<comma>\\*['"],\s*b?)))"""
)
_WEAK = re.compile(r"(?i)(?:^|[._-])(?:pass|token|sig|signature)\Z")
"""Also names of secrets, but messages have them before a colon, as ``unexpected token: x``: there they count if no
word is before them."""
_WORD_BEFORE = re.compile(r"\w[ \t]")

_VALUE = re.compile(
    r"""\*{3}(?=[\])}])"""  # masked before
    r"""|\\+"[^"\\\n]*\\+"|\\+'[^'\\\n]*\\+'"""
    r"""|'(?:[^'\\]|\\+[^\\\n])*'|"(?:[^"\\]|\\+[^\\\n])*"|(?:\\+(?:[^\\\n]|$)|[^\s&,;'"\\])+"""
)
_HEADER = re.compile(
    r"""(?i)(\bauthorization\\*['"]?\s{0,8}[:=,]\s{0,8}b?\\*['"]?(?:[a-z][a-z0-9-]{1,20}[ \t]+)?)[^\s'",\\]+"""
)


def masked(text: str) -> str:
    """A text without passwords of URLs and values of options that are named like secrets.

    Texts hold what users' records hold, so this takes time in proportion to their length, whatever they are.
    """
    if "://" in text and "@" in text:
        text = _without_passwords(text)
    if any(mark in text for mark in "=:-,"):
        text = _HEADER.sub(rf"\1{MASK}", _without_values(text))
    return text


def _without_passwords(text: str) -> str:
    """A password may hold blanks, "@", ":" and "/": it ends with the last "@" before a quote, or of a word."""
    in_line, in_word = _LastAt(text, r"""['"\n]"""), _LastAt(text, r"\s")
    parts, done = [], 0
    for user in _USER.finditer(text):
        end = in_line.after(user.end())
        if end < 0:
            end = in_word.after(user.end())
        if end >= 0 and user.start() >= done:
            parts += [text[done : user.end()], MASK]
            done = end
    return "".join([*parts, text[done:]])


class _LastAt:
    """Finds the last "@" before the next of some characters; each stretch of the text is looked at once."""

    def __init__(self, text: str, ends: str) -> None:
        self._text = text
        self._ends = re.compile(ends)
        self._end = self._last = -1

    def after(self, position: int) -> int:
        if position > self._end:
            found = self._ends.search(self._text, position)
            self._end = len(self._text) if found is None else found.start()
            self._last = self._text.rfind("@", position, self._end)
        return self._last if self._last >= position else -1


def _without_values(text: str) -> str:
    parts, done = [], 0
    for name in _NAME.finditer(text):
        if name.start() < done or not _names_a_secret(name, text):
            continue
        value = _VALUE.match(text, name.end())
        if value is not None:
            parts += [text[done : name.end()], MASK]
            done = value.end()
    return "".join([*parts, text[done:]])


def _names_a_secret(found: re.Match[str], text: str) -> bool:
    """Whether what follows is the value of a secret, as far as can be told."""
    name = found["option"] or found["name"]
    is_certain = _SECRET.search(name) is not None
    if not is_certain and _WEAK.search(name) is None:
        return False
    start = found.start("name")
    if found["comma"] is not None:  # else it may be one of several names
        return text[max(start - 2, 0) : start] in ("('", '("')
    if found["colon"] is None or is_certain:
        return True
    return _WORD_BEFORE.fullmatch(text, max(start - 2, 0), start) is None


def secret_in(uri: str) -> str | None:
    """Which part of a URI holds a secret: ``"a password"``, or the name of an option; None if none does."""
    _, separator, rest = uri.partition("://")
    if not separator:
        return None
    user = _USER.match(f"://{rest}")
    if user is not None and "@" in f"://{rest}"[user.end() :]:
        return "a password"
    for option in rest.partition("?")[2].split("&"):
        name, is_set, _ = option.partition("=")
        if is_set and (_SECRET.search(unquote(name)) or _WEAK.search(unquote(name))):
            return f"option {name!r}"
    return None
