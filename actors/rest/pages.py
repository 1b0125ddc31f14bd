"""The dashboard's files: the one thing that is answered without a token, as browsers send none for a page.

They are the same for everybody and hold no data: what a page shows it asks for, with the token that its user gives it.
All are read when a server is made, and each has a route of its own: no path of a request ever becomes that of a file.

All but the page itself are in a folder that is named by what is in it, so browsers keep them: a page that is opened
again has one file loaded, and not forty. A page of another version names another folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from .resources.routes import Answer, RestRequest, Right, Route

__all__ = ["FOLDER", "page_routes"]

FOLDER = Path(__file__).parent / "web"

_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml; charset=utf-8",
}
"""By the end of a name; other files, as licences, are not served."""


class _File:
    """Answers with a file.

    Args:
        answer: The file.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def __call__(self, _request: RestRequest) -> Answer:
        """The file."""
        return self._answer


def page_routes() -> Iterator[Route]:
    """Yield a route for each file; the dashboard itself is at ``/``, the others are below ``/web/SUM/``."""
    paths = [path for path in sorted(FOLDER.rglob("*")) if path.suffix in _MEDIA_TYPES]
    files = {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in paths}
    total = hashlib.sha256()
    for name, content in files.items():
        total.update(f"{name} {len(content)} ".encode() + content)
    folder = f"web/{total.hexdigest()[:16]}/"
    for name, content in files.items():
        media_type = _MEDIA_TYPES[Path(name).suffix]
        if name == "index.html":
            place, answer = "/", Answer(content.replace(b'"web/', f'"{folder}'.encode()), 200, media_type, is_page=True)
        else:
            place, answer = f"/{folder}{name}", Answer(content, 200, media_type, is_page=True, is_kept=True)
        yield Route("GET", place, Right.NONE, _File(answer), "A file of the dashboard.", media_type=media_type)
