"""The dashboard's files: the one thing that is answered without a token, as browsers send none for a page.

They are the same for everybody and hold no data: what a page shows it asks for, with the token that its user gives it.
All are read when a server is made, and each has a route of its own: no path of a request ever becomes that of a file.
"""

from __future__ import annotations

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
        path: Of the file; it is read now.
    """

    def __init__(self, path: Path) -> None:
        self.media_type = _MEDIA_TYPES[path.suffix]
        self._answer = Answer(path.read_text(encoding="utf-8"), media_type=self.media_type, is_page=True)

    def __call__(self, _request: RestRequest) -> Answer:
        """The file."""
        return self._answer


def page_routes() -> Iterator[Route]:
    """Yield a route for each file; the dashboard itself is at ``/``, the others are below ``/web/``."""
    for path in sorted(FOLDER.rglob("*")):
        if path.suffix in _MEDIA_TYPES:
            name = path.relative_to(FOLDER).as_posix()
            file = _File(path)
            place = "/" if name == "index.html" else f"/web/{name}"
            yield Route("GET", place, Right.NONE, file, "A file of the dashboard.", media_type=file.media_type)
