"""The dashboard's files: the one thing that needs no token. They hold no data, and cannot run what they do not have.

Risks and families: ways in (enumeration, paths that leave the folder); scripts and markup from elsewhere (what the
sources may not say); libraries that somebody has changed (sums).
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import shutil

import pytest
from rest_kit import ask

from headrace.actors.rest.pages import FOLDER, page_routes
from headrace.actors.rest.resources.routes import Right
from headrace.actors.rest.security import fresh_tokens
from headrace.actors.rest.server import RestServer
from headrace.engine.kernel.rest_settings import RestSettings

VENDORED = {
    "preact.js": "86c693f569d3ec7b694002cc62d0aac3c00231cc0ab76e48f607b3c3df3f6217",
    "hooks.js": "69b3b46cbeedeb2eac134482f6eb30abdd5af0467e6f2ffa50e5f776a0a1dae2",
    "htm.js": "ab33dd3f38059b9be4d5f5350128eefb2356639c4e0bbe9d9e8b3ba75847e9e4",
}
"""SHA-256 by file; see the README beside them."""

OWN = sorted(path for path in FOLDER.rglob("*.js") if path.parent.name != "vendor")


@pytest.fixture(scope="module")
def url():
    """A server that has nobody to ask: pages need no cluster."""
    server = RestServer(None, RestSettings(bind_port="0"), fresh_tokens())
    yield server.start()
    server.close()


def open_paths():
    table = RestServer(None, RestSettings(bind_port="0"), fresh_tokens()).table
    return {route.path for route in table.routes if route.right is Right.NONE}


def places():
    """Where each file is that is served, by its name."""
    by_name = {}
    for path in open_paths():
        folder = re.fullmatch(r"/web/[0-9a-f]{16}/(.+)", path)
        by_name["index.html" if path == "/" else folder[1]] = path
    return by_name


def test_only_the_dashboards_own_files_are_answered_without_a_token(url):
    files = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*") if path.is_file()}
    served = {name for name in files if not name.endswith((".txt", ".md"))}
    found = places()
    assert set(found) == served
    (folder,) = {path.rpartition(name)[0] for name, path in found.items() if name != "index.html"}
    assert {"index.html", "app.js", "app.css", "pages/job.js", "vendor/preact.js"} <= served
    for name in served:
        place, content = found[name], files[name].read_bytes()
        answer = ask(url, place)
        if name == "index.html":
            assert answer.headers["cache-control"] == "no-store"
            content = content.replace(b'"web/', f'"{folder[1:]}'.encode())
        else:
            assert answer.headers["cache-control"] == "private, max-age=31536000, immutable"
        assert (answer.status, answer.content) == (200, content)
        assert ask(url, place, method="HEAD").content == b""
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
            assert ask(url, place, method=method).status == 401, (method, place)
        wrong = {"Host": f"evil.example:{url.rpartition(':')[2]}"}
        assert ask(url, place, headers=wrong).status == 403
        assert ask(url, place, headers={"Origin": "http://evil.example"}).status == 403
        assert ask(url, f"{place}?token=x").status == 400


@pytest.mark.parametrize(
    "path",
    [
        "/web/../server.py",
        "/web/%2e%2e/server.py",
        "/web/..%2fserver.py",
        "/web/%252e%252e%252fserver.py",
        "/web//app.js",
        "/web/pages",
        "/web/",
        "/web/vendor/preact.LICENSE.txt",
        "//evil.example/web/app.js",
        "/index.html",
    ],
)
def test_no_other_file_is_reached(url, path):
    assert ask(url, path).status == 401


def test_browsers_are_told_to_load_nothing_from_elsewhere_and_to_make_no_markup_of_text(url):
    for path in sorted(open_paths()):
        headers = ask(url, path).headers
        policy = {part.split()[0]: part.split()[1:] for part in headers["content-security-policy"].split("; ")}
        assert policy == {
            "default-src": ["'self'"],
            "frame-ancestors": ["'none'"],
            "base-uri": ["'none'"],
            "form-action": ["'none'"],
            "object-src": ["'none'"],
            "require-trusted-types-for": ["'script'"],
            "trusted-types": ["'none'"],
        }
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        kinds = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "html": "text/html"}
        kind = kinds["html" if path == "/" else path.rpartition(".")[2]]
        assert headers["content-type"] == f"{kind}; charset=utf-8"


def test_sources_make_no_markup_of_text_and_name_no_other_place():
    for path in [*OWN, FOLDER / "index.html", FOLDER / "app.css", FOLDER / "views.css"]:
        text = path.read_text(encoding="utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "cookie"):
            assert word not in text, (path.name, word)
        assert not re.search(r"https?://|['\"(]//[a-z]|@import|javascript:", text), path.name
    html = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", html)


def test_every_module_that_is_imported_is_served():
    served = places()
    for path in [*OWN, *(FOLDER / "vendor").glob("*.js")]:
        own = path.relative_to(FOLDER).as_posix()
        for name in re.findall(
            r"""(?:import|export)\b[^"';]*?from\s*["']([^"']+)["']""", path.read_text(encoding="utf-8")
        ):
            assert name.startswith("."), (own, name)
            assert posixpath.normpath(posixpath.join(posixpath.dirname(own), name)) in served, (own, name)


def test_libraries_are_those_that_were_published():
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (FOLDER / "vendor").glob("*.js")}
    assert found == VENDORED
    assert "MIT License" in (FOLDER / "vendor" / "preact.LICENSE.txt").read_text(encoding="utf-8")
    assert "Apache License" in (FOLDER / "vendor" / "htm.LICENSE.txt").read_text(encoding="utf-8")


def test_pages_are_read_once():
    """A file that is changed later is not what is served: there is no path from a request to the disk."""
    (route,) = [route for route in page_routes() if route.path.endswith("/app.js")]
    assert route.handler(None) is route.handler(None)


def test_a_file_that_is_changed_is_another_one_to_browsers(tmp_path, monkeypatch):
    """They keep files for a year: what is new must have another name, whichever file it is."""
    before = {route.path for route in page_routes()}
    folder = shutil.copytree(FOLDER, tmp_path / "web")
    monkeypatch.setattr("headrace.actors.rest.pages.FOLDER", folder)
    assert {route.path for route in page_routes()} == before
    with (folder / "parts" / "format.js").open("a", encoding="utf-8") as file:
        file.write("// another one")
    assert {route.path for route in page_routes()} & before == {"/"}
