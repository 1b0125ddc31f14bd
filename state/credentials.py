"""Keeping passwords out of what people see: texts are masked, and places that are kept and shown may hold none.

Errors end in job views, histories, logs and terminals. So every error of ours masks its text (`masked`): passwords of
URLs, and what is named like a secret: ``name=value``, ``name: value``, ``--name value``, ``-u me:x``, the same as
Python, JSON, YAML or XML write it, as a text, a list, an object or a block of lines; HTTP's ``Authorization``,
``Cookie`` and ``Set-Cookie``; and ``Bearer x`` and ``Basic x`` without any name before them. Masking goes too far
rather than not far enough.

A directory of checkpoints, savepoints or output is part of all these, of manifests and of settings, and a program has
to be able to use it again. It cannot be masked, so one that holds a password (`secret_in`) is refused where places are
taken: `headrace.state.files.filesystem.absolute_uri`.
"""

from __future__ import annotations

import base64
import re
from urllib.parse import unquote

__all__ = ["MASK", "is_secret", "masked", "secret_in", "without_secrets"]

MASK = "***"

_SECRET = re.compile(
    r"(?i)password|passwd|passphrase|secret|api[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key|auth[_-]?token"
    r"|(?:session|access|sas|refresh|bearer|api)[_-]?token|access[_-]?signature|encryption[_-]?key|credential"
    r"|(?:^|[._-])(?:pwd|passfile|sslkey)\Z|^headers\."
)
"""What the name of a secret has in it, or is; any header of HTTP, as options of tables have them, may say who asks."""

# A port is no password: ``://host:8265/`` holds none.
_USER = re.compile(r"""://[^\s/:@'"]*:(?!\d+(?:[/?#\s'",;)\]]|$))""")

# ``--name value``, ``'--name', 'value'``; ``name=value``, ``'name' = 'value'``, ``'name': 'value'``, ``name: value``,
# ``('name', 'value')``;
# also behind a newline that is written as Python writes it.
_NAME = re.compile(
    r"""(?:\\[nrt]|(?<![\w.-]))(?:(?P<option>--?[A-Za-z][\w.-]*)(?:[ \t]+(?!-)|\\*['"],\s*)"""
    r"""|(?P<name>[\w.-]+)(?:\s*[:!]?={1,2}>?\s*|\\*['"]\s*(?::|={1,2}>?)\s*|(?P<colon>[ \t]*:(?!//)[ \t]*)"""
    r"""|(?P<comma>\\*['"],\s*)))"""
)
_WEAK = re.compile(r"(?i)(?:^|[._-])(?:pass|token|sig|signature)\Z")
"""Also names of secrets, but messages have them before a colon, as ``unexpected token: x``: there they count if no
word is before them."""
_WORD_BEFORE = re.compile(r"\w[ \t]")
_AUTHORIZATION = re.compile(r"(?i)(?:^|[._-])authorization\Z")
_COOKIE = re.compile(r"(?i)(?:^|[._-])(?:set-|simple)?cookies?2?\Z|^morsel\Z")
_OF_HEADERS = re.compile(r"(?i)auth|token|(?:^|-)key\Z|signature")
_AUTH = re.compile(r"(?i)(?:^|[._-])auth\Z")
"""``auth=("user", "password")``, as HTTP clients take it; anything else is ``auth=basic`` and the like."""

_QUOTED = re.compile(
    r"""\\+"[^"\\\n]*\\+"|\\+'[^'\\\n]*\\+'"""
    r"""|'(?:[^'\\]|''|\\+[^\\\n])*'|"(?:[^"\\]|""|\\+[^\\\n])*\""""
)
_PREFIX = re.compile(r"""[A-Za-z]{1,2}(?=\\*['"])""")
_RUN = re.compile(r"""(?:\\+(?:[^\\\n]|$)|[^\s&,;'"\\])+""")
_RUN_BEHIND_QUOTE = re.compile(r"""[^\s&,;'"\\)\]}>]+""")
_CALL = re.compile(r"[A-Za-z_][\w.]{0,80}(?=\()")
_BRACKETS = re.compile(rf"{_QUOTED.pattern}|[\[({{]|[\])}}]|\\+")
_BLOCK = re.compile(r"(?P<mark>[|>][+-]?[1-9]?)?[ \t]*(?P<newline>\n|\\n)")
_SCHEME = re.compile(r"[A-Za-z][\w-]{1,20}[ \t]+")
_KNOWN_SCHEME = re.compile(r"(?i)(?:bearer|basic|digest|negotiate|token)[ \t]+")
_PARAMETER = rf"""[\w-]+[ \t]*=[ \t]*(?:{_QUOTED.pattern}|[^\s,;'"\\]+)"""
_PARAMETERS = re.compile(rf"{_PARAMETER}(?:[ \t]*,[ \t]*{_PARAMETER})*")
_COOKIES = re.compile(rf"""{_PARAMETER}(?:;[ \t]*(?:{_PARAMETER}|[^\s;,='"\\]+))*""")
_CLOSING = re.compile(r"""['"\n]""")

_BARE = re.compile(
    r"""(?i)(?P<quote>['"]?)(?:(?<=\\[nrt])|\b)(?P<scheme>bearer|basic)[ \t]+"""
    r"""(?P<value>[A-Za-z0-9._~+/-]+=*(?!\w))(?P<end>['"]?)"""
)
_WORD = re.compile(r"[A-Za-z]?[a-z]{0,15}[.]?|[A-Z]{1,15}[.]?|[0-9]{1,3}(?:[.][0-9]{1,3})?[.]?|[a-z]+(?:-[a-z]+)+")
_USER_OPTION = re.compile(
    r"""((?:(?<=\\[nrt])|(?<![\w-]))(?:-u|--user|--proxy-user)"""
    r"""(?:[ \t]+|=|\\*['"],[ \t]*)\\*['"]?[^\s:'"=/\\]{0,200}:)"""
    r"""(?![0-9]+(?:[\s'"\\]|$))[^\s'"\\]+"""  # numbers are those of a user and a group
)
_ELEMENT = re.compile(r"<(?P<name>[\w.:-]{1,200})(?:\s[^<>]{0,1000})?>(?P<value>[^<]+)")
_PROPERTY = re.compile(r"<name>(?P<name>[^<]{1,500})</name>(?:\s|\\[nrt]){0,100}<value>(?P<value>[^<]+)")
_JAR = re.compile(r"(<Cookie [^\s=]{1,200}=)\S+(?= for )")

_MAX_INDENT = 200
_MAX_BRACKETS = 1 << 14
"""How long what is in brackets may be."""
_MAX_LOOKED_AT = 1 << 20
"""How many characters are looked at in brackets that may not end: a text could have an opening one after each name."""


def masked(text: str) -> str:
    """Return a text without passwords of URLs and values of options that are named like secrets.

    Texts hold what users' records hold, so this takes time in proportion to their length, whatever they are.
    """
    if "://" in text and "@" in text:
        text = _without_passwords(text)
    if any(mark in text for mark in "=:-,"):
        text = _Values(text).masked()
        text = _USER_OPTION.sub(rf"\1{MASK}", text)
    if "<" in text:
        text = _JAR.sub(rf"\1{MASK}", _PROPERTY.sub(_element, _ELEMENT.sub(_element, text)))
    return _BARE.sub(_bare, text)


def _element(found: re.Match[str]) -> str:
    """XML: an element that is named like a secret, or a property of that name, as Hadoop's configuration has it."""
    name = found["name"]
    is_secret = _SECRET.search(name) is not None or _WEAK.search(name) is not None
    if not is_secret or not found["value"].strip():
        return found[0]
    return f"{found.string[found.start() : found.start('value')]}{MASK}"


def _bare(found: re.Match[str]) -> str:
    """What HTTP calls credentials, unless they are the next words of a sentence, as in "basic types", "bearer of news".

    Alone between quotes they are no sentence. Basic credentials are the Base64 of a name, a colon and a password.
    """
    value = found["value"]
    is_alone = bool(found["quote"]) and found["quote"] == found["end"]
    if found["scheme"].lower() == "bearer":
        is_secret = is_alone or _WORD.fullmatch(value) is None
    else:
        is_secret = _is_basic(value) or (is_alone and _WORD.fullmatch(value) is None)
    if not is_secret:
        return found[0]
    return f"{found.string[found.start() : found.start('value')]}{MASK}{found['end']}"


def _is_basic(value: str) -> bool:
    letters = value.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        decoded = base64.b64decode(letters + "=" * (-len(letters) % 4), validate=True)
    except ValueError:
        return False
    if b":" not in decoded:
        return False
    try:
        decoded.decode()
    except UnicodeDecodeError:
        return _WORD.fullmatch(value) is None
    return True


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


class _Values:
    """Finds the values behind the names of secrets in a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        # How many characters have been looked at for the ends of brackets.
        self._looked_at = 0

    def masked(self) -> str:
        """The text without them."""
        text, parts, done = self._text, list[str](), 0
        for name in _NAME.finditer(text):
            if name.start() < done:
                continue
            end = self._end_of_secret(name)
            if end > name.end():
                parts += [text[done : name.end()], MASK]
                done = end
        return "".join([*parts, text[done:]])

    def _end_of_secret(self, found: re.Match[str]) -> int:
        """Where the secret ends that follows a name; -1 if the name is none of a secret, as far as can be told."""
        text, name, start = self._text, found["option"] or found["name"], found.end()
        if _COOKIE.search(name):
            if found["comma"] is not None and not self._is_first_of_pair(found):
                return -1
            cookies = _COOKIES.match(text, start)
            if cookies is not None:
                return cookies.end()
            return -1 if found["colon"] is not None else self._end_of_value(start)
        if _AUTHORIZATION.search(name):
            scheme = _SCHEME.match(text, start)
            first = start if scheme is None else scheme.end()
            parameters = _PARAMETERS.match(text, first)
            if parameters is not None:
                return parameters.end()
            return max(self._end_of_value(first), self._end_of_value(start))
        if _AUTH.search(name):
            is_pair = text.startswith(("(", "["), start) or _CALL.match(text, start) is not None
            return self._end_of_value(start) if is_pair else -1
        if not self._names_a_secret(found, name):
            return -1
        if found["colon"] is not None and (block := _BLOCK.match(text, start)):
            if not block["mark"] and self._has_word_before(found.start("name")):
                return -1  # a message, with something else in its next lines
            return self._end_of_block(found.start("name"), block.end(), block["newline"])
        scheme = _KNOWN_SCHEME.match(text, start)
        if scheme is not None and (end := self._end_of_value(scheme.end())) >= 0:
            return end
        return self._end_of_value(start)

    def _has_word_before(self, start: int) -> bool:
        return _WORD_BEFORE.fullmatch(self._text, max(start - 2, 0), start) is not None

    def _names_a_secret(self, found: re.Match[str], name: str) -> bool:
        is_certain = _SECRET.search(name) is not None
        if not is_certain and _WEAK.search(name) is None:
            return False
        if found["comma"] is not None:
            return self._is_first_of_pair(found)
        if found["colon"] is None or is_certain:
            return True
        return not self._has_word_before(found.start("name"))

    def _is_first_of_pair(self, found: re.Match[str]) -> bool:
        """Whether a name before a comma is that of a value; else it may be one of several names."""
        start = found.start("name")
        return self._text[max(start - 3, 0) : start].rstrip("\\'\"b")[-1:] == "("

    def _end_of_value(self, start: int) -> int:
        text = self._text
        if text.startswith(MASK, start) and text[start + len(MASK) : start + len(MASK) + 1] in (")", "]", "}", "\\"):
            return start + len(MASK)  # masked before
        prefix = _PREFIX.match(text, start)
        quoted = _QUOTED.match(text, start if prefix is None else prefix.end())
        if quoted is not None:
            behind = _RUN_BEHIND_QUOTE.match(text, quoted.end())
            return quoted.end() if behind is None else behind.end()
        call = _CALL.match(text, start)
        opening = start if call is None else call.end()
        if text[opening : opening + 1] in ("(", "[", "{"):
            closing = self._end_of_brackets(opening)
            if closing < 0 and call is None:
                line = text.find("\n", opening)
                return len(text) if line < 0 else line
            if closing >= 0:
                behind = _RUN.match(text, closing)
                return closing if behind is None else behind.end()
        run = _RUN.match(text, start)
        return -1 if run is None else run.end()

    def _end_of_brackets(self, opening: int) -> int:
        """Where what is in brackets ends; -1 if it does not."""
        depth, limit = 0, min(len(self._text), opening + _MAX_BRACKETS)
        if self._looked_at > _MAX_LOOKED_AT:
            return -1
        for token in _BRACKETS.finditer(self._text, opening, limit):
            if token[0] in ("(", "[", "{"):
                depth += 1
            elif token[0] in (")", "]", "}"):
                depth -= 1
                if depth == 0:
                    self._looked_at += token.end() - opening
                    return token.end()
        self._looked_at += limit - opening
        return -1

    def _end_of_block(self, name: int, start: int, newline: str) -> int:
        """Where the lines end that are indented more than the one with the name; -1 if there are none.

        Args:
            name: Where the name is.
            start: Where the lines begin.
            newline: What ends a line: in a text that Python has quoted it is a backslash and a letter.
        """
        text, limit, is_quoted = self._text, len(self._text), newline != "\n"
        before = text[max(name - _MAX_INDENT, 0) : name].rpartition(newline)[2]
        if is_quoted:
            before = before[max(before.rfind("'"), before.rfind('"')) + 1 :]
        indent = len(before) - len(before.lstrip(" -"))
        end = position = start
        while position < limit:
            following = text.find(newline, position)
            following = limit if following < 0 else following
            if is_quoted and (closing := _CLOSING.search(text, position, following)):
                following = limit = closing.start()
            content = text[position:following]
            if content.strip():
                if len(content) - len(content.lstrip(" \t")) <= indent:
                    break
                end = following
            position = following + len(newline)
        return end if end > start else -1


def is_secret(name: str) -> bool:
    """Return whether an option of that name holds a secret, as far as names tell."""
    # A header of HTTP is shown to nobody, but few of them say who asks.
    header = name.removeprefix("headers.")
    if header != name:
        return any(one.search(header) for one in (_SECRET, _WEAK, _AUTHORIZATION, _COOKIE, _OF_HEADERS))
    return any(one.search(name) for one in (_SECRET, _WEAK))


def without_secrets(value: str) -> str:
    """Return the value of an option without the password and the secret parameters of a URL, and as it is if it is
    none.

    Other than `masked` it goes no further: two values that are of different things are different texts.
    """
    place, separator, rest = value.partition("://")
    if not separator:
        return value
    user = _USER.match(f"://{rest}")
    authority = rest.partition("/")[0]
    if user is not None and "@" in authority:
        rest = f"{user[0].removeprefix('://')}{MASK}@{rest[authority.rindex('@') + 1 :]}"
    path, mark, parameters = rest.partition("?")
    kept = [
        f"{name}={MASK}" if is_set and is_secret(unquote(name)) else f"{name}{is_set}{text}"
        for name, is_set, text in (one.partition("=") for one in parameters.split("&"))
    ]
    return f"{place}://{path}{mark}{'&'.join(kept)}"


def secret_in(uri: str) -> str | None:
    """Return which part of a URI holds a secret: ``"a password"``, or the name of an option; None if none does."""
    _, separator, rest = uri.partition("://")
    if not separator:
        return None
    user = _USER.match(f"://{rest}")
    if user is not None and "@" in f"://{rest}"[user.end() :]:
        return "a password"
    for option in rest.partition("?")[2].split("&"):
        name, is_set, value = option.partition("=")
        if is_set and (_SECRET.search(unquote(name)) or _WEAK.search(unquote(name))):
            return f"option {name!r}"
        if secret_in(unquote(value)) is not None:  # of an endpoint, say
            return f"a password in option {name!r}"
    return None
