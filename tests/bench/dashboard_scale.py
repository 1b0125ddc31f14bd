"""REST and the dashboard over a job of 200 vertices and 1,000 subtasks, which only its views are of.

    python tests/bench/dashboard_scale.py [--vertices 200] [--parallelism 5] [--slow-down 1]

Prints how long REST takes to answer, of 100 answers of each path that the graph asks (each made anew), and how much
processor time that takes, of who asks, too; and in Chromium: how long the layout takes, how long the page's thread is
at work for answers, and how frames come while the graph is moved. Times of wall clocks say little on a machine with
other work, whose load is printed, too; processor time is what REST itself can be blamed for.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from dashboard_kit import DESKTOP, Watched, browser
from large_job import JOB, LargeCluster
from rest_kit import ask

from headrace.actors.rest.security import fresh_tokens
from headrace.actors.rest.server import RestServer
from headrace.engine.kernel.rest_settings import RestSettings

LAYOUT = """async () => {
    const { layOut } = await import(new URL('parts/layout.js', document.querySelector('script').src));
    const { ask } = await import(new URL('parts/api.js', document.querySelector('script').src));
    const job = await ask('/jobs/JOB');
    const ids = job.vertices.map(vertex => vertex.id);
    const inputs = node => (node.inputs ?? []).map(input => ({ source: input.id, target: node.id }));
    const edges = job.plan.nodes.flatMap(inputs);
    const options = { size: { width: 224, height: 96 }, gap: { along: 110, across: 30 }, isDown: false };
    const times = [];
    for (let i = 0; i < 10; i += 1) {
        const began = performance.now();
        layOut(ids, edges, options);
        times.push(performance.now() - began);
    }
    return times;
}"""

FRAMES = """async () => {
    const graph = document.querySelector('.graph');
    const box = graph.getBoundingClientRect();
    const [x, y] = [box.left + 400, box.top + 200];
    const at = i => ({ clientX: x + 150 * Math.sin(i / 8), clientY: y + 80 * Math.cos(i / 8) });
    const send = (kind, i) => graph.dispatchEvent(new PointerEvent(kind, { ...at(i), pointerId: 1, bubbles: true }));
    const times = [];
    send('pointerdown', 0);
    let before = await new Promise(requestAnimationFrame);
    for (let i = 1; i <= 120; i += 1) {
        send('pointermove', i);
        const now = await new Promise(requestAnimationFrame);
        times.push(now - before);
        before = now;
    }
    send('pointerup', 120);
    return times;
}"""

WORK = """seconds => new Promise(resolve => {
    const found = [];
    const note = list => found.push(...list.getEntries().map(entry => entry.duration));
    new PerformanceObserver(note).observe({ type: 'longtask' });
    setTimeout(() => resolve(found), seconds * 1000);
})"""


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def rest_times(url: str, token: str) -> None:
    for path in (f"/jobs/{JOB}", f"/jobs/{JOB}/watermarks", "/jobs/overview", f"/jobs/{JOB}/checkpoints"):
        times, worked = [], []
        for _ in range(100):
            began, began_to_work = time.perf_counter(), time.process_time()
            answer = ask(url, path, token)
            times.append(1_000 * (time.perf_counter() - began))
            worked.append(1_000 * (time.process_time() - began_to_work))
            assert answer.status == 200
        print(
            f"REST {path.replace(JOB, ':jobid'):28} {len(answer.content) / 1024:7.0f} KiB"
            f"   median {statistics.median(times):6.1f} ms   p99 {quantile(times, 0.99):6.1f} ms"
            f"   processor time: median {statistics.median(worked):6.1f} ms   p99 {quantile(worked, 0.99):6.1f} ms"
        )


def processor_time(session: Any) -> float:
    """What the page's thread has used so far, in seconds."""
    found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return float(found["TaskDuration"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vertices", type=int, default=200)
    parser.add_argument("--parallelism", type=int, default=5)
    parser.add_argument("--slow-down", type=float, default=1, help="of the browser's processor, as for a phone")
    parser.add_argument("--picture", type=Path, help="of the whole graph")
    options = parser.parse_args()
    tokens = fresh_tokens()
    settings = RestSettings(bind_port="0", view_ttl_ms=0, refresh_interval_ms=1_000)
    server = RestServer(LargeCluster(options.vertices, options.parallelism), settings, tokens)
    url = server.start()
    num_tasks = options.vertices * options.parallelism
    print(f"{options.vertices} vertices, {num_tasks} subtasks; load of the machine {os.getloadavg()[0]:.1f}")
    try:
        rest_times(url, tokens.read)
        with browser() as chromium:
            page = chromium.new_context(viewport=DESKTOP).new_page()
            watched = Watched(page, url)
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable", {"timeDomain": "threadTicks"})
            if options.slow_down != 1:
                session.send("Emulation.setCPUThrottlingRate", {"rate": options.slow_down})
            asked: list[str] = []
            page.on("response", lambda response: asked.append(response.url))
            watched.sign_in(tokens.read)
            began = time.perf_counter()
            watched.go(f"#/job/{JOB}/graph", f'[data-vertex="v{options.vertices - 1}"]')
            print(f"page: from the click to the graph {1_000 * (time.perf_counter() - began):.0f} ms")
            layout = page.evaluate(LAYOUT.replace("JOB", JOB))
            print(f"layout: median {statistics.median(layout):.1f} ms, first {layout[0]:.1f} ms")
            page.wait_for_timeout(2_000)
            (before, num_before), began = (processor_time(session), len(asked)), time.perf_counter()
            work = page.evaluate(WORK, 10)
            (after, num_after), seconds = (processor_time(session), len(asked)), time.perf_counter() - began
            print(
                f"page: {num_after - num_before} answers in {seconds:.0f} s take {after - before:.2f} s of its thread's"
                f" processor time; {len(work)} tasks of 50 ms and more, the longest {max(work, default=0):.0f} ms"
            )
            frames = page.evaluate(FRAMES)
            print(
                f"frames while the graph is moved: median {statistics.median(frames):.1f} ms,"
                f" p95 {quantile(frames, 0.95):.1f} ms, longest {max(frames):.1f} ms"
            )
            if options.picture:
                page.screenshot(path=options.picture)
            print("\n".join(watched.complaints) or "no complaints")
            return 1 if watched.complaints else 0
    finally:
        server.close()


if __name__ == "__main__":
    sys.exit(main())
