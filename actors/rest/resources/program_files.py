"""Programs that were uploaded: a Python file or a zip of a project; checked before they are kept, kept as files.

What is in a file is never run or compiled here. Names are of few characters and never joined to a path unchecked; a zip
is looked through as a whole, and only regular files below its own folder come out of it, no more of them and no larger
than was said.

Source: Flink's ``JarUploadHandler`` and its ``web.upload.dir``; the OWASP advice on uploads; CVE-2020-17518.
"""

from __future__ import annotations

import io
import re
import stat
import time
import uuid
import zipfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from headrace.engine.errors import NotFoundError
from headrace.state.files.filesystem import filesystem_for

from .routes import RestError

__all__ = ["ProgramFile", "ProgramStore", "checked_program", "entry_of", "file_in_form", "unpack"]

MOST_PROGRAMS = 100

MOST_FILES = 2_000
"""In a zip."""

MOST_TIMES = 20
"""All files of a zip may be so many times as large as an upload may be."""

MOST_DEPTH = 20
MOST_PART_BYTES = 255
"""Of a name between slashes, as on most disks."""

MOST_TABLE_BYTES = MOST_FILES * 1_000
"""The table of a zip, with a name and an entry of 46 bytes for each file; a larger one is not read at all."""

_END_BYTES = 66_000
"""Where the size of the table is said: before a comment of 65,535 bytes at most."""

DEFAULT_ENTRIES = ("main.py", "__main__.py", "job.py")
"""What is run of a zip, if nothing else is said: the first of these that is there, or the only Python file."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}\.(?:py|zip)")
_ID = re.compile(rf"[0-9a-f]{{32}}_(?P<at>[0-9]{{13}})_(?P<name>{_NAME.pattern})")


@dataclass(frozen=True, slots=True)
class ProgramFile:
    """A program that is kept.

    Attributes:
        id: By which it is run and deleted.
        name: As it was uploaded.
        uploaded_ms: When.
        num_bytes: How large it is.
    """

    id: str
    name: str
    uploaded_ms: int
    num_bytes: int


class ProgramStore:
    """Files in a directory, which all heads of a cluster see.

    Args:
        directory: A path or a URI.
    """

    def __init__(self, directory: str) -> None:
        self._fs, self._root = filesystem_for(directory, is_private=True)

    def add(self, name: str, content: bytes) -> ProgramFile:
        """Keep a program that was checked.

        Raises:
            RestError: 409 if there are too many.
        """
        if len(self.all()) >= MOST_PROGRAMS:
            raise RestError(409, f"{MOST_PROGRAMS} programs are kept; delete one first")
        uploaded_ms = time.time_ns() // 1_000_000
        program = f"{uuid.uuid4().hex}_{uploaded_ms:013}_{name}"
        self._fs.write_bytes(f"{self._root}/{program}", content)
        return ProgramFile(program, name, uploaded_ms, len(content))

    def all(self) -> list[ProgramFile]:
        """Return all programs, newest first."""
        found = []
        for path, num_bytes in self._fs.list_files(self._root):
            match = _ID.fullmatch(path.rpartition("/")[2])
            if match is not None:
                found.append(ProgramFile(match[0], match["name"], int(match["at"]), num_bytes))
        return sorted(found, key=lambda one: (-one.uploaded_ms, one.id))

    def read(self, program: str, max_bytes: int) -> tuple[str, bytes]:
        """Return a program's name and content.

        Raises:
            RestError: 404 if it is not there.
        """
        match = _require_id(program)
        try:
            return match["name"], self._fs.read_bytes(f"{self._root}/{program}", max_bytes)
        except NotFoundError:
            raise _missing(program) from None

    def delete(self, program: str) -> None:
        """Forget a program; jobs that it has submitted go on.

        Raises:
            RestError: 404 if it is not there.
        """
        _require_id(program)
        path = f"{self._root}/{program}"
        if not self._fs.exists(path):
            raise _missing(program)
        self._fs.delete(path)


def _require_id(program: str) -> re.Match[str]:
    match = _ID.fullmatch(program)
    if match is None:
        raise _missing(program)
    return match


def _missing(program: str) -> RestError:
    return RestError(404, f"there is no program {program[:200]!r}")


# --------------------------------------------------------------------------------------------------------------- checks
def file_in_form(content: bytes, content_type: str) -> tuple[str, bytes]:
    """Return name and content of the one file of a form.

    Args:
        content: A body, ``multipart/form-data`` with one part.
        content_type: Its header.

    Raises:
        RestError: 400 if it is none.
    """
    match = re.fullmatch(
        r'multipart/form-data;\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s";,]{1,70}))', content_type.strip()
    )
    if match is None:
        raise RestError(400, "a program is sent as a form of one file: multipart/form-data")
    mark = b"--" + (match[1] or match[2]).encode("latin-1")
    head, between, rest = content.partition(b"\r\n\r\n")
    body, end, behind = rest.rpartition(b"\r\n" + mark + b"--")
    lines = head.split(b"\r\n")
    if not between or not end or lines[0] != mark or behind.strip() or b"\r\n" + mark in body:
        raise RestError(400, "the form must have one part, a file")
    named = None
    for line in lines[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == b"content-disposition":
            named = re.search(rb'filename="([^"\r\n]*)"', value)
    if named is None:
        raise RestError(400, "the part of the form has no file name")
    return named[1].decode("utf-8", "replace"), body


def checked_program(name: str, content: bytes, max_bytes: int) -> str:
    """See that an upload is a program; returns its name.

    Raises:
        RestError: 400 with the reason.
    """
    if _NAME.fullmatch(name) is None or ".." in name:
        message = "a program is a .py or a .zip, named by letters, digits, '.', '_' and '-', 100 at most"
        raise RestError(400, f"{message}; got {name[:120]!r}")
    if name.endswith(".zip"):
        if not any(file.endswith(".py") for file in _checked_zip(content, max_bytes)):
            raise RestError(400, f"{name} has no Python file")
        return name
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise RestError(400, f"{name} is no text in UTF-8") from None
    if not text.strip() or "\0" in text:
        raise RestError(400, f"{name} is no program")
    return name


def _checked_zip(content: bytes, max_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """The files of a zip by their names, none of which leaves its folder.

    Raises:
        RestError: 400 with the reason.
    """
    _require_short_table(content)
    try:
        infos = zipfile.ZipFile(io.BytesIO(content)).infolist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, EOFError) as error:
        raise RestError(400, f"this is no zip that can be read: {error}"[:300]) from None
    if len(infos) > MOST_FILES:
        raise RestError(400, f"the zip has {len(infos):,} files; {MOST_FILES:,} are allowed")
    files: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        shown = ascii(info.filename[:120])
        _check_name(info.filename, shown)
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise RestError(400, f"the zip has a link or device: {shown}")
        if info.flag_bits & 1:
            raise RestError(400, f"the zip is encrypted: {shown}")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise RestError(400, f"the zip is packed in a way that is not read here: {shown}")
        if info.is_dir():
            continue
        if info.filename in files:
            raise RestError(400, f"the zip has a file twice: {shown}")
        files[info.filename] = info
    folders = {folder.as_posix() for name in files for folder in PurePosixPath(name).parents}
    for name in files:
        if name in folders:
            raise RestError(400, f"the zip has a file and a folder of one name: {name[:120]!a}")
    total = sum(info.file_size for info in files.values())
    if total > MOST_TIMES * max_bytes:
        raise RestError(400, f"the zip would unpack to {total:,} bytes; {MOST_TIMES * max_bytes:,} are allowed")
    return files


def _require_short_table(content: bytes) -> None:
    """Refuse a zip with a table of very many files before an object is made of each.

    Raises:
        RestError: 400 if it is one.
    """
    end = content[-_END_BYTES:]
    sizes = [int.from_bytes(end[at.start() + 12 : at.start() + 16], "little") for at in re.finditer(b"PK\x05\x06", end)]
    sizes = [size for size in sizes if size != 0xFFFF_FFFF]  # which is said in the longer form then
    sizes += [
        int.from_bytes(end[at.start() + 40 : at.start() + 48], "little") for at in re.finditer(b"PK\x06\x06", end)
    ]
    if max(sizes, default=0) > MOST_TABLE_BYTES:
        raise RestError(400, f"the zip has too many files, or too long names; {MOST_FILES:,} files are allowed")


def _check_name(name: str, shown: str) -> None:
    parts = name.rstrip("/").split("/")
    is_odd = "\\" in name or "\0" in name or ":" in name or any(not one.isprintable() for one in name)
    if is_odd or any(part in ("", ".", "..") for part in parts) or len(name) > 500 or len(parts) > MOST_DEPTH:
        raise RestError(400, f"the zip has a file that would lie elsewhere, or has an odd name: {shown}")
    if any(len(part.encode()) > MOST_PART_BYTES for part in parts):
        raise RestError(400, f"the zip has a file with too long a name: {shown}")


def entry_of(names: Collection[str], wanted: str | None, zip_name: str) -> str:
    """Return the file of a zip that is run.

    Args:
        names: Those of its files.
        wanted: What was asked for; None for the default.
        zip_name: For errors.

    Raises:
        RestError: 400 if there is none.
    """
    known = [name for name in names if name.endswith(".py")]
    if wanted is not None:
        if wanted not in known:
            raise RestError(400, f"{zip_name} has no Python file {wanted[:200]!r}; it has: {_some(known)}")
        return wanted
    tops = {name.split("/", 1)[0] for name in names}
    folder = f"{next(iter(tops))}/" if len(tops) == 1 and all("/" in name for name in names) else ""
    for default in DEFAULT_ENTRIES:
        if folder + default in known:
            return folder + default
    if len(known) == 1:
        return known[0]
    message = f"it cannot be said which file of {zip_name} is run: it has {_some(known)}"
    raise RestError(400, f"{message}; call one {DEFAULT_ENTRIES[0]}, or name it (entryClass)")


def _some(names: list[str]) -> str:
    return ", ".join(sorted(names)[:10]) + (" ..." if len(names) > 10 else "") if names else "none"


def unpack(content: bytes, folder: Path, max_bytes: int) -> list[str]:
    """Write the files of a zip below a folder; returns their names.

    Raises:
        RestError: 400 if it is not what it said: nothing more is written then.
    """
    files = _checked_zip(content, max_bytes)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name, info in files.items():
            path = folder.joinpath(*name.split("/"))
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(info) as source:
                    data = source.read(info.file_size + 1)
                if len(data) != info.file_size:
                    message = "its size is another one"
                    raise zipfile.BadZipFile(message)
                with path.open("xb") as target:
                    target.write(data)
            except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, NotImplementedError) as error:
                raise RestError(400, f"{name[:120]!a} cannot be unpacked: {error}"[:400]) from None
    return list(files)
