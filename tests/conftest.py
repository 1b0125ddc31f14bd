"""What every process of a run relies on, and which tests stay together when there are several (``pytest -n 4``)."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import threading
import time
import weakref
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from bytecode_sharing import compile_together
from campaigns import EVERY_RUN, RANDOM, TIMES_THE_EXAMPLES, in_part, leave_most, part
from costs import LONGEST_S, above_longest, costs, leave_costly
from hypothesis import HealthCheck, settings
from lanes import is_in_this_run, known, lanes_of

for profile, times in TIMES_THE_EXAMPLES.items():
    # Machines that run tests are too uneven for deadlines per example; properties reset their `BackendKit` themselves.
    settings.register_profile(
        profile,
        settings.get_profile("default"),
        max_examples=int(100 * times),
        deadline=None,
        derandomize=profile != RANDOM,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
settings.load_profile(EVERY_RUN)

PATIENCE_S = 30.0
"""How long hosts of a cluster that was closed may take to be forgotten by Ray."""

MEMORY = Path("/dev/shm")
"""A file system in memory, where there is one."""

ENOUGH_BYTES = 1 << 30
"""How much room it must have: a run has some 100 MB at a time, but containers may give it 64 MB in all."""

_rays_of_this_process: list[Path] = []
"""The folder in which Rays of this process, and of programs that it starts, find each other; it alone uses it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lane", metavar="NAME", type=known, help="only tests that need this server (tests/lanes.py)")
    parser.addoption("--costly", action="store_true", help="also what takes too long for every run (tests/costs.py)")
    parser.addoption(
        "--part", metavar="1/3", type=part, help="a third, or so, of what is selected (tests/campaigns.py)"
    )


def pytest_configure(config: pytest.Config) -> None:
    # A suite that runs in the background of a shell inherits an ignored SIGINT, which tests send to themselves.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Whatever must be durable is flushed, which takes milliseconds a file on a disk: files of tests go into memory.
    if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ENOUGH_BYTES:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None  # so that it is looked up again
    # Rays are found through files in a folder of the machine: with one for each process of a run those of one neither
    # find those of another nor a Ray of somebody else. Sockets live in it, with names shorter than 108 bytes.
    folder = tempfile.mkdtemp(prefix="hr-", dir="/tmp")
    _rays_of_this_process.append(Path(folder))
    os.environ["RAY_TMPDIR"] = folder
    # By default the processes of a Ray wait until nobody else wants a core, and beside them other tests compute.
    os.environ.update(RAY_worker_niceness="0")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Each process of a run is told the folder of the one that has started it, which is theirs together."""
    node.workerinput["shared_folder"] = str(_rays_of_this_process[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadgroup":
        return None
    from dealing import Dealing

    return Dealing(config, log)


def pytest_unconfigure(config: pytest.Config) -> None:
    for folder in _rays_of_this_process:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, Any]:
    """Nothing that modules make while they are imported is garbage: a search for it takes as long as all the rest."""
    gc.disable()
    try:
        if own := getattr(session.config, "workerinput", None):
            compile_together(session.config, Path(own["shared_folder"]))
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before the groups are read
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What needs Ray runs in one process, one after another, and what needs Spark in another one.

    They come first and mostly wait: beside them two other processes compute, and in the end all four do. Those that
    share a server, or the syntax trees of all source files, stay together. What takes long does not come last, when
    others have nothing left to do.
    """
    leave_most(items, config.getoption("lane"))
    if not config.getoption("costly") and not config.getoption("lane"):
        leave_costly(items, costs())
    keep_asked_for(config, items)
    for item in items:
        lanes = lanes_of(item)
        if lanes and not item.get_closest_marker("timeout"):  # who fetches and starts a server has patience of its own
            item.add_marker(pytest.mark.timeout(float(config.getini("timeout")), func_only=True))
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif item.get_closest_marker("ray"):
            item.add_marker(pytest.mark.xdist_group("ray"))
        elif lanes:  # a server takes seconds of a core to start: only one process of a run does it
            item.add_marker(pytest.mark.xdist_group(min(lanes)))
    items.sort(key=turn_of if hasattr(config, "workerinput") else needs_no_ray)


def turn_of(item: pytest.Item) -> tuple[bool, int]:
    """Where a test comes in a run of several processes; those of one turn stay in their order."""
    first = ("ray", "spark", "slow")
    return needs_no_ray(item), next((turn for turn, name in enumerate(first) if item.get_closest_marker(name)), 3)


def needs_no_ray(item: pytest.Item) -> bool:
    """Such tests come behind the rest, which share the Ray of their process."""
    return "no_ray" in getattr(item, "fixturenames", ())


def keep_asked_for(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of other lanes, and of other parts, than those of this run."""
    lane, number_and_count = config.getoption("lane"), config.getoption("part")
    kept = [item for item in items if is_in_this_run(lanes_of(item), lane)]
    if number_and_count is not None:
        kept = in_part(kept, *number_and_count)
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=list(set(items) - set(kept)))
        items[:] = kept


def pytest_collection_finish(session: pytest.Session) -> None:
    """Thousands of tests and their modules stay to the end: no search for garbage needs to look at them each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def no_garbage_search() -> Generator[None, None, None]:
    """For tests that go as deep as Python can: finalizers of what others have left would fail there."""
    gc.disable()
    yield
    gc.enable()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Name at the end of a run what a newcomer waits too long for. It fails nothing: a busy machine is slow."""
    if config.option.markexpr == "not campaign":
        of_tests = (one for some in terminalreporter.stats.values() for one in some)
        if found := above_longest(one for one in of_tests if isinstance(one, pytest.TestReport)):
            terminalreporter.section(f"tests above {LONGEST_S:g} s: shorten them, or leave them to campaigns")
            terminalreporter.write("".join(f"{line}\n" for line in found))


@pytest.fixture(scope="session")
def environments() -> Iterator[weakref.WeakSet[Any]]:
    """The stream environments of this process. Open ones are kept until it ends; others go when nobody has them."""
    from headrace import StreamExecutionEnvironment

    made: weakref.WeakSet[Any] = weakref.WeakSet()
    original = StreamExecutionEnvironment.__init__

    def noted(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        made.add(self)

    StreamExecutionEnvironment.__init__ = noted
    yield made
    StreamExecutionEnvironment.__init__ = original


@pytest.fixture(autouse=True)
def no_environment_stays_open(environments: weakref.WeakSet[Any]) -> Iterator[None]:
    """What a test has opened ends with it: a cluster in this process has threads, and ticks that take its time."""
    of_others, clients = set(environments), client_threads()
    yield
    for environment in set(environments) - of_others:
        environment.close()
    # A client that is left goes on to ask its server, and draws from the random numbers of properties behind it.
    assert client_threads() <= clients, "a reader or sink of this test was not closed"


@pytest.fixture(autouse=True)
def no_variable_stays_set() -> Iterator[None]:
    """What a command says to its program, it says by variables; here the next test runs in the same process."""
    before = own_variables()
    yield
    for name in own_variables().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def own_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("HEADRACE_")}


def client_threads() -> set[threading.Thread]:
    """Those of clients that nobody has told to end; one that was told may wait for an answer for long."""
    clients = {thread for thread in threading.enumerate() if thread.name.startswith("headrace-client ")}
    return {one for one in clients if (run := getattr(one, "_target", None)) and not run.__self__._stop.is_set()}


@pytest.fixture(scope="session")
def shared_ray() -> Iterator[SharedRay]:
    shared = SharedRay()
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def ray_session(shared_ray: SharedRay) -> Iterator[None]:
    """The Ray of this process; behind the tests of a module nothing of ours may be left in it."""
    shared_ray.open()
    yield
    shared_ray.check()


@pytest.fixture
def no_ray(shared_ray: SharedRay) -> None:
    """This process is connected to no Ray: the one for all tests is closed, and opened again when it is wanted."""
    shared_ray.close()


class SharedRay:
    """A Ray of our own that tests of several modules use one after another: to start one takes seconds."""

    def __init__(self) -> None:
        # Whether this one has made the connection of this process.
        self._is_open = False

    def open(self) -> None:
        from headrace.actors.ray.connection import open_ray

        self._is_open |= open_ray("local", 8)

    def check(self) -> None:
        """Wait until nothing of our clusters is left; fail if something stays."""
        import ray

        if not ray.is_initialized():
            return
        deadline = time.monotonic() + PATIENCE_S
        while left := [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]:
            assert time.monotonic() < deadline, f"hosts were left behind: {left}"
            time.sleep(0.05)
        groups = ray.util.placement_group_table().values()
        assert not [group for group in groups if group["state"] != "REMOVED"], "places were left behind"

    def close(self) -> None:
        if self._is_open:
            import ray

            ray.shutdown()
            self._is_open = False
