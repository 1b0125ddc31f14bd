"""Pictures of every page of the dashboard over a running job, in two sizes and two themes, for people to look at.

    python tests/bench/dashboard_pictures.py DIRECTORY [--hostile] [--only NAME]

Says what the pages have complained of, and ends with 1 if they have.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from dashboard_kit import DESKTOP, HOSTILE, PHONE, Watched, browser, build_orders, dashboard_environment, until

SETTLE_MS = 6_000


def places(job: str, checkpoint: int) -> dict[str, tuple[str, str]]:
    vertex = "score%2F1"
    return {
        "overview": ("#/", "#running"),
        "graph": (f"#/job/{job}/graph", ".vertex"),
        "drawer": (f"#/job/{job}/graph/{vertex}/load", ".drawer polyline"),
        "subtasks": (f"#/job/{job}/graph/{vertex}/subtasks", ".drawer tbody tr"),
        "backpressure": (f"#/job/{job}/graph/orders/backpressure", ".drawer tbody tr"),
        "vertex-watermarks": (f"#/job/{job}/graph/{vertex}/watermarks", ".drawer tbody tr"),
        "metrics": (f"#/job/{job}/graph/{vertex}/metrics", ".drawer .chart"),
        "operators": (f"#/job/{job}/graph/{vertex}/operators", ".drawer tbody tr"),
        "flame-graph": (f"#/job/{job}/graph/{vertex}/flame-graph", ".flames button"),
        "records": (f"#/job/{job}/graph/{vertex}/records", "[data-action=look]"),
        "logs": (f"#/job/{job}/logs", ".log p"),
        "watermarks": (f"#/job/{job}/watermarks", "#watermarks tbody tr"),
        "checkpoints": (f"#/job/{job}/checkpoints", "#history tbody tr"),
        "checkpoint": (f"#/job/{job}/checkpoints/{checkpoint}/{vertex}", "#gantt .row.inner"),
        "exceptions": (f"#/job/{job}/exceptions", ".failure"),
        "timeline": (f"#/job/{job}/timeline", "#timeline .row.inner"),
        "accumulators": (f"#/job/{job}/accumulators", "#accumulators"),
        "configuration": (f"#/job/{job}/configuration", "#configuration dt"),
        "task-managers": ("#/task-managers", "#task-managers"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--hostile", action="store_true", help="names that are markup")
    parser.add_argument("--only", action="append", help="this page; may be repeated")
    parser.add_argument("--theme", choices=("light", "dark"), action="append")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    complaints: list[str] = []
    with (
        tempfile.TemporaryDirectory() as place,
        dashboard_environment(rest={"allows_record_samples": True, "masked_fields": ("customer",)}) as env,
        browser() as chromium,
    ):
        build_orders(env, f"{place}/checkpoints", HOSTILE if options.hostile else "score")
        job = env.execute_async(HOSTILE if options.hostile else "scores of orders")
        job_id = job.get_job_id()
        address, rest = env._cluster.rest_addresses()[0], env.get_rest_client()
        until(lambda: rest.job_status(job_id) == "RUNNING", "it does not run")
        until(lambda: rest.checkpoints(job_id)["counts"]["completed"] >= 1, "no checkpoint")
        job.fail_task("score/1", 1, f"card number is not valid: {HOSTILE}\n  File shop.py, line 12, in score")
        until(lambda: rest.get(f"/jobs/{job_id}")["num-restarts"] == 1, "no restart")
        until(lambda: rest.job_status(job_id) == "RUNNING", "it does not run again")
        done = rest.checkpoints(job_id)["counts"]["completed"]
        until(lambda: rest.checkpoints(job_id)["counts"]["completed"] > done + 1, "no further checkpoint")
        for size, viewport in (("desktop", DESKTOP), ("phone", PHONE)):
            for theme in options.theme or ("light", "dark"):
                context = chromium.new_context(viewport=viewport, color_scheme=theme, device_scale_factor=1)
                watched = Watched(context.new_page(), address.url)
                watched.page.goto(f"{address.url}/")
                watched.page.wait_for_selector("#token")
                if not options.only:
                    watched.page.screenshot(path=options.directory / f"sign-in-{size}-{theme}.png")
                watched.sign_in(address.tokens.write)
                watched.go(f"#/job/{job_id}/graph", ".vertex")
                watched.page.wait_for_timeout(SETTLE_MS)
                for name in options.only or places(job_id, 0):
                    latest = rest.checkpoints(job_id)["latest"]["completed"]["id"]
                    where, selector = places(job_id, latest)[name]
                    watched.go(where, selector)
                    watched.page.wait_for_timeout(700)
                    full = size == "phone"
                    watched.page.screenshot(path=options.directory / f"{name}-{size}-{theme}.png", full_page=full)
                    wide = watched.page.evaluate("document.documentElement.scrollWidth - innerWidth")
                    if wide > 0:
                        complaints.append(f"{name}-{size}: {wide} px too wide")
                complaints += watched.complaints + watched.foreign
                context.close()
    print("\n".join(dict.fromkeys(complaints)) or "no complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
