"""Writes ``docs/openapi.json`` anew, from the table of routes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace.actors.rest.security import fresh_tokens
from headrace.actors.rest.server import RestServer
from headrace.engine.kernel.rest_settings import RestSettings

PATH = Path(__file__).parents[3] / "docs" / "openapi.json"


def document() -> Any:
    table = RestServer(None, RestSettings(bind_port="0"), fresh_tokens()).table
    return table.find("GET", "/openapi.json")[0].handler(None)


if __name__ == "__main__":
    PATH.write_text(json.dumps(document(), indent=1) + "\n", encoding="utf-8")
