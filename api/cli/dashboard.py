"""The command ``headrace dashboard``: says where a cluster's dashboard is and which token it asks for, and opens it.

The token is shown, and not handed to the browser: an address with a token in it would be in the list of processes,
which everybody on the machine can read, and in the browser's history.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import webbrowser
from typing import Any

from ..rest.client import RestClient

__all__ = ["add_command"]


def add_command(commands: Any) -> None:
    """Add the command to the parser of ``headrace``."""
    dashboard = commands.add_parser("dashboard", help="open the dashboard of a cluster whose head is on this machine")
    dashboard.add_argument("cluster", nargs="?", help="its name; not needed if there is one only")
    dashboard.add_argument("--read-only", action="store_true", help="show the token that allows looking only")
    dashboard.add_argument("--no-browser", action="store_true", help="only say where it is")
    dashboard.add_argument("--json", action="store_true", help="an object, and no browser")
    dashboard.set_defaults(function=_dashboard)


def _dashboard(options: argparse.Namespace) -> int:
    rest = RestClient.find(options.cluster, read_only=options.read_only)
    name = rest.get("/config")["cluster"]  # it answers
    if options.json:
        print(json.dumps({"cluster": name, "url": f"{rest.url}/", "token": rest.token, "read-only": options.read_only}))
        return 0
    print(f"dashboard of cluster {name}: {rest.url}/\ntoken{' to look only' * options.read_only}: {rest.token}")
    if not options.no_browser and _has_display():
        webbrowser.open(f"{rest.url}/")
    return 0


def _has_display() -> bool:
    """Whether a browser would have a place: one in a terminal would take it over."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
