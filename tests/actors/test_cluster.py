"""Clusters as clients see them: connecting, jobs from submission to archive, and what is left at the end."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from actor_machines import Puppet

from headrace import StreamExecutionEnvironment
from headrace.actors.cluster import Cluster
from headrace.actors.connecting import all_jobs, cancel_job, connect, list_clusters
from headrace.actors.hosts.host_system import HostGoneError
from headrace.connectors.datagen import GeneratorSource
from headrace.engine.errors import (
    ClusterUnavailableError,
    ConfigurationError,
    JobError,
    JobNotFoundError,
    NoResourceAvailableError,
)
from headrace.engine.graph.chaining import build_job_graph
from headrace.engine.kernel.config import ClusterSettings, JobSettings
from headrace.engine.kernel.machine import Address
from headrace.engine.protocol.messages import (
    CancelJob,
    FetchReports,
    KillSlotOnPurpose,
    ListJobs,
    ReportsFetched,
    ShutDownCluster,
    WaitForJob,
)

ENDED = ("FINISHED", "CANCELED", "FAILED")


@pytest.fixture(params=["sim", "local", pytest.param("ray", marks=pytest.mark.ray)])
def cluster(request):
    if request.param == "ray":
        request.getfixturevalue("ray_session")
    with connect(request.param) as cluster:
        yield cluster


def job_graph(num_records=50, parallelism=2, settings=JobSettings(attached=False)):
    environment = StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism)
    stream = environment.from_collection(list(range(num_records)))
    stream.key_by(lambda n: n % 5).map(lambda n: n + 1).print()
    return build_job_graph(environment.get_stream_graph(), "a job", settings)


def endless_job_graph():
    environment = StreamExecutionEnvironment.get_execution_environment("local", parallelism=1)
    environment.from_source(GeneratorSource(lambda n: n, records_per_second=100)).print()
    return build_job_graph(environment.get_stream_graph(), "an endless job", JobSettings(attached=False))


def wait_for_end(cluster, job_id):
    view = cluster.ask_job(job_id, WaitForJob(-1, 0))
    while view.state not in ENDED:
        view = cluster.ask_job(job_id, WaitForJob(view.version, 5_000))
    return view


def test_a_job_runs_to_its_end_and_its_reports_can_be_fetched(cluster):
    job_id = cluster.submit(job_graph(), 2)
    assert wait_for_end(cluster, job_id).state == "FINISHED"
    reports = cluster.ask_job(job_id, FetchReports(0)).reports
    assert len(reports) > 0
    assert [view.job_id for view in cluster.ask_dispatcher(ListJobs())] == [job_id]


def test_threads_that_ask_an_ended_leader_at_once_all_get_the_answer_of_its_successor(monkeypatch):
    """A client's own thread and the one that follows its job meet the same dead JobManager."""
    num_threads = 3
    with connect("local") as cluster:
        job_id = cluster.submit(job_graph(num_records=5, parallelism=1), 1)
        wait_for_end(cluster, job_id)
        ask, all_have_asked = cluster.system.ask, threading.Barrier(num_threads)

        def ask_the_dead_first(address, request, timeout_ms):
            if address.host == "jm-dead":
                all_have_asked.wait(30)
                message = "the host has ended"
                raise HostGoneError(message, host=address.host)
            return ask(address, request, timeout_ms)

        cluster.ask_job(job_id, WaitForJob(-1, 0))
        cluster._leaders[job_id] = Address("jm-dead", "job_manager")
        monkeypatch.setattr(cluster.system, "ask", ask_the_dead_first)
        with ThreadPoolExecutor(num_threads) as pool:
            views = list(pool.map(lambda _: cluster.ask_job(job_id, WaitForJob(-1, 0)), range(num_threads)))
    assert [view.state for view in views] == ["FINISHED"] * num_threads


ON_RAY_IN_CAMPAIGNS = ["sim", "local", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.campaign])]


@pytest.mark.parametrize("cluster", ON_RAY_IN_CAMPAIGNS, indirect=True)
def test_an_ended_job_is_answered_for_by_the_archive(cluster):
    job_id = cluster.submit(job_graph(num_records=5, parallelism=1), 1)
    wait_for_end(cluster, job_id)
    offset = cluster.ask_job(job_id, FetchReports(0)).next_offset
    cluster.ask_job(job_id, FetchReports(offset))
    deadline = cluster.system.elapsed_ms() + 60_000
    while any(host.startswith("jm-") for host in cluster.system.hosts) and cluster.system.elapsed_ms() < deadline:
        cluster.system.wait(200)
    assert cluster.ask_job(job_id, WaitForJob(-1, 0)).state == "FINISHED"
    assert cluster.ask_job(job_id, FetchReports(offset)) == ReportsFetched(offset, [])
    assert cluster.ask_job(job_id, CancelJob()) is True
    with pytest.raises(JobError, match="FINISHED"):
        cluster.ask_job(job_id, KillSlotOnPurpose(0))


def test_a_job_that_is_not_there_is_not_found(cluster):
    with pytest.raises(JobNotFoundError):
        cluster.ask_job("nothing", WaitForJob(-1, 0))


def test_closing_may_be_repeated_and_ends_everything(cluster):
    cluster.close()
    assert cluster.system.hosts == []
    cluster.close()


def test_a_cluster_refuses_what_it_can_never_give():
    with connect("local", settings=ClusterSettings(max_slots=1)) as cluster, pytest.raises(NoResourceAvailableError):
        cluster.submit(job_graph(), 2)


def test_a_lost_leader_is_looked_for_again():
    with connect("sim") as cluster:
        job_id = cluster.submit(job_graph(), 2)
        cluster._leaders[job_id] = Address("jm-long-gone", "jm")
        assert wait_for_end(cluster, job_id).state == "FINISHED"


def test_a_simulated_cluster_leaves_nothing_behind():
    cluster = connect("sim", seed=3)
    wait_for_end(cluster, cluster.submit(job_graph(), 2))
    system = cluster.system
    cluster.ask_dispatcher(ShutDownCluster())
    system.run_for(2_000)
    system.check_leaks()
    cluster.close()


@pytest.mark.parametrize("options", [{"address": "somewhere:1"}, {"detached": True}])
def test_options_of_ray_are_refused_elsewhere(options):
    with pytest.raises(ConfigurationError, match="actor system 'ray'"):
        connect("local", **options)


def test_an_unknown_actor_system_is_refused():
    with pytest.raises(ConfigurationError, match="'akka'"):
        connect("akka")


def test_an_address_of_the_ray_client_is_refused_with_the_reason():
    with pytest.raises(ConfigurationError, match="Ray client"):
        connect("ray", address="ray://somewhere:10001")


def test_an_address_that_is_none_is_refused(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ConfigurationError, match="host:port"):
        connect("ray", address="somewhere")


def test_a_cluster_that_is_not_there_is_named_within_seconds(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    began = time.monotonic()
    with pytest.raises(ClusterUnavailableError, match=address):
        connect("ray", address=address)
    assert time.monotonic() - began < 10


@pytest.mark.ray
def test_a_detached_cluster_stays_and_is_found_by_name(ray_session):
    first = connect("ray", detached=True, name="stays")
    job_id = first.submit(endless_job_graph(), 1)
    first.close()
    assert [cluster.name for cluster in list_clusters()] == ["stays"]
    assert [(name, view.job_id) for name, view in all_jobs()] == [("stays", job_id)]
    cancel_job(None, "stays", job_id)
    again = connect("ray", detached=True, name="stays")
    assert again.ask_job(job_id, WaitForJob(-1, 0)).state == "CANCELED"
    again.shut_down()
    assert list_clusters() == []


@pytest.mark.ray
def test_a_cluster_whose_head_has_died_says_so(ray_system):
    ray_system.start("root", (("puppet", Puppet),))
    with pytest.raises(HostGoneError):
        Cluster(ray_system, "other", is_owner=False).ask_dispatcher(ListJobs())
