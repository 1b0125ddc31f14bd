"""Pictures of the panels of the dashboard that ask for something, in two sizes and two themes, for people to look at.

    python tests/bench/panel_pictures.py DIRECTORY [--only NAME]

Says what the pages have complained of, and ends with 1 if they have.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from dashboard_kit import DESKTOP, PHONE, Watched, browser
from panel_kit import Shop


def state(watched: Watched, shop: Shop) -> None:
    watched.go(f"#/job/{shop.id}/graph/accounts/state", "[data-action=ask-state]")
    watched.page.fill("[data-field=key]", "ann")
    watched.page.click("[data-action=ask-state]")
    watched.page.wait_for_selector(".drawer code.record")


def submit(watched: Watched, shop: Shop) -> None:
    with tempfile.TemporaryDirectory() as place:
        program = Path(place) / "daily_orders.py"
        program.write_text("print('a program')")
        watched.go("#/submit", "#programs")
        if watched.page.query_selector("[data-action=run]") is None:
            watched.page.set_input_files("input[type=file]", program)
            watched.page.click("[data-action=upload]")
            watched.page.wait_for_selector("[data-action=run]")


PANELS: dict[str, Callable[[Watched, Shop], None]] = {"state": state, "submit": submit}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", choices=tuple(PANELS), action="append", help="this panel; may be repeated")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    complaints: list[str] = []
    with tempfile.TemporaryDirectory() as place, browser() as chromium:
        shop = Shop(place)
        shop.settle()
        Path(place, "programs").mkdir()
        server, url = shop.taking_programs(f"{place}/programs")
        for size, viewport in (("desktop", DESKTOP), ("phone", PHONE)):
            for theme in ("light", "dark"):
                context = chromium.new_context(viewport=viewport, color_scheme=theme)
                watched = Watched(context.new_page(), url)
                watched.sign_in(shop.address.tokens.write)
                for name in options.only or PANELS:
                    PANELS[name](watched, shop)
                    watched.page.wait_for_timeout(500)
                    path = options.directory / f"{name}-{size}-{theme}.png"
                    watched.page.screenshot(path=path, full_page=size == "phone")
                    wide = watched.page.evaluate("document.documentElement.scrollWidth - innerWidth")
                    if wide > 0:
                        complaints.append(f"{name}-{size}: {wide} px too wide")
                complaints += watched.complaints + watched.foreign
                context.close()
        server.close()
        shop.env.close()
    print("\n".join(dict.fromkeys(complaints)) or "no complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
