"""All pictures of the dashboard that docs show, taken anew, each of the job that its page speaks of.

    python tests/bench/docs_pictures.py [DIRECTORY] [--only PART]

Into ``docs/pictures`` unless another directory is said. The parts are the pages of a running job, the panels that ask
for something, a data set on Spark, and the way of `docs/guide/first-steps.md` on Ray. On a machine with other work they
show a job that is slower than its page says: take them on one that has time, and look at them.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from dashboard_kit import DESKTOP, PHONE, Watched, browser, build_orders, dashboard_environment, until
from dashboard_pictures import SETTLE_MS, places

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"

LIGHT, DARK = "light", "dark"
OF_JOB = {
    "dashboard-graph": ("graph", DESKTOP, LIGHT),
    "dashboard-drawer": ("drawer", DESKTOP, LIGHT),
    "dashboard-checkpoint": ("checkpoint", DESKTOP, LIGHT),
    "dashboard-phone": ("graph", PHONE, DARK),
}
"""Pages of a running job, as `dashboard_pictures` names them, by the names that docs give their pictures."""

OF_PANELS = {"dashboard-state": "state", "dashboard-submit": "submit"}
"""The same of panels, as `panel_pictures` names them."""

START_TIMEOUT_MS = 600_000
"""Of Spark."""


def job(directory: Path) -> None:
    """A job with a slow operator, that nothing has failed."""
    with (
        tempfile.TemporaryDirectory() as place,
        dashboard_environment(rest={"allows_record_samples": True}) as env,
        browser() as chromium,
    ):
        build_orders(env, f"{place}/checkpoints", "score")
        job_id = env.execute_async("scores of orders").get_job_id()
        (address,), rest = env._cluster.rest_addresses(), env.get_rest_client()
        until(lambda: rest.checkpoints(job_id)["counts"]["completed"] >= 3, "no checkpoints")
        for shown, (page, viewport, theme) in OF_JOB.items():
            watched = Watched(chromium.new_context(viewport=viewport, color_scheme=theme).new_page(), address.url)
            watched.sign_in(address.tokens.write)
            watched.go(f"#/job/{job_id}/graph", "[data-hint=bottleneck]")
            watched.page.wait_for_timeout(2 * SETTLE_MS)  # charts are of what was seen
            watched.go(*places(job_id, rest.checkpoints(job_id)["latest"]["completed"]["id"])[page])
            watched.page.wait_for_timeout(SETTLE_MS)
            watched.page.screenshot(path=directory / f"{shown}.png")
            assert (watched.complaints, watched.foreign) == ([], [])
            watched.page.context.close()


def panels(directory: Path) -> None:
    """The panels that ask for something, by their own script."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([sys.executable, Path(__file__).parent / "panel_pictures.py", place], check=True)
        for shown, name in OF_PANELS.items():
            shutil.copy(Path(place, f"{name}-desktop-light.png"), directory / f"{shown}.png")


def data_set(directory: Path) -> None:
    """A union of two sums over Spark, once it has ended."""
    from headrace import ExecutionEnvironment, RestSettings

    env = ExecutionEnvironment.get_execution_environment(
        "spark", 4, rest=RestSettings(bind_port="0"), start_timeout_ms=START_TIMEOUT_MS
    )
    try:
        left = env.generate_sequence(1, 400_000).map(lambda n: (n % 5, n)).group_by(0).sum(1)
        right = env.generate_sequence(1, 40_000).map(lambda n: (n % 5, n)).group_by(0).sum(1)
        assert left.union(right).group_by(0).max(1).count() == 5
        rest = env.get_rest_client(read_only=True)
        (job,) = rest.jobs()
        with browser() as chromium:
            watched = Watched(chromium.new_context(viewport=DESKTOP).new_page(), rest.url)
            watched.sign_in(rest.token)
            watched.go(f"#/job/{job['jid']}/stages", ".vertex")
            watched.page.wait_for_timeout(500)
            watched.page.screenshot(path=directory / "dashboard-data-set.png")
            assert (watched.complaints, watched.foreign) == ([], [])
    finally:
        env.close()


def first_steps(directory: Path) -> None:
    """What somebody new sees, by the script that goes the way."""
    script = Path(__file__).parents[1] / "first_steps.py"
    subprocess.run([sys.executable, script, "--pictures", directory], check=True)


PARTS: dict[str, Callable[[Path], None]] = {
    "job": job,
    "panels": panels,
    "data-set": data_set,
    "first-steps": first_steps,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, nargs="?", default=PICTURES)
    parser.add_argument("--only", choices=tuple(PARTS), action="append", help="this part; may be repeated")
    options = parser.parse_args()
    directory = options.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    for name in options.only or PARTS:
        PARTS[name](directory)


if __name__ == "__main__":
    main()
