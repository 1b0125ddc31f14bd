"""REST of heads that are processes: each head answers for the cluster, no matter which of them leads."""

from __future__ import annotations

import json
import time
import urllib.request
import zipfile
from pathlib import Path

import cloudpickle
import pytest
import rest_kit
from rest_kit import NUM_RECORDS, ask, build

from headrace import HighAvailabilitySettings, ReporterSettings, RestSettings, StreamExecutionEnvironment
from headrace.engine.kernel.sampling_settings import SamplingSettings

pytestmark = [pytest.mark.ray, pytest.mark.campaign]

PATIENCE_S = 30


@pytest.fixture
def by_value():
    """Processes do not find the tests' modules."""
    cloudpickle.register_pickle_by_value(rest_kit)
    yield
    cloudpickle.unregister_pickle_by_value(rest_kit)


def test_every_head_answers_for_a_running_job(ray_session, by_value, tmp_path):
    ha = HighAvailabilitySettings(str(tmp_path / "ha"), "rest-of-two", num_standbys=1)
    look = SamplingSettings(num_samples=20, delay_ms=10)
    rest = RestSettings(bind_port="20000-32000", view_ttl_ms=0, backpressure=look, flame_graph=look)
    env = StreamExecutionEnvironment.get_execution_environment(
        "ray", parallelism=2, rest=rest, high_availability=ha, cpu_per_slot=0.0
    )
    with env:
        build(env, tmp_path / "checkpoints")
        job_id = env.execute_async("seen by both").get_job_id()
        addresses = env._cluster.rest_addresses()
        assert len({address.url for address in addresses}) == 2
        assert len({address.tokens for address in addresses}) == 1

        def vertices(address):
            job = ask(address.url, f"/jobs/{job_id}", address.tokens.read)
            assert job.status == 200, job
            return {vertex["id"]: vertex["metrics"] for vertex in job.json["vertices"]}

        deadline = time.monotonic() + PATIENCE_S
        for address in addresses:
            assert ask(address.url, "/overview").status == 401
            # The record of the stream without end may be that of either split.
            while vertices(address).get("note", {}).get("read-records", 0) < NUM_RECORDS + 1:
                assert time.monotonic() < deadline, vertices(address)
                time.sleep(0.1)
            assert vertices(address)["numbers"]["write-records"] == NUM_RECORDS
            overview = ask(address.url, "/overview", address.tokens.read).json
            assert (overview["jobs-running"], overview["slots-total"]) == (1, 2)
        # Looked at in its process, by whichever head is asked.
        deadline = time.monotonic() + PATIENCE_S
        for kind, is_there in (
            ("flamegraph", lambda found: found["data"]),
            ("backpressure", lambda found: found["status"] == "ok"),
        ):
            path = f"/jobs/{job_id}/vertices/note/{kind}"
            while not is_there(ask(addresses[1].url, path, addresses[1].tokens.read).json):
                assert time.monotonic() < deadline, kind
                time.sleep(0.1)
        graph = ask(addresses[1].url, f"/jobs/{job_id}/vertices/note/flamegraph", addresses[1].tokens.read).json
        assert {child["name"] for child in graph["data"]["children"]} >= {"(waits for input or time)"}
        other = addresses[1]
        assert ask(other.url, f"/jobs/{job_id}", other.tokens.write, method="PATCH").status == 202
        while ask(other.url, f"/jobs/{job_id}/status", other.tokens.read).json["status"] != "CANCELED":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        files = [Path(address.file) for address in addresses]
        assert all(file.exists() for file in files)
    assert not any(file.exists() for file in files)


def test_rays_own_prometheus_endpoint_shows_the_job(ray_session, by_value, tmp_path):
    """Its agent collects what the head sets; the numbers are those that the functions have counted."""
    import ray

    env = StreamExecutionEnvironment.get_execution_environment(
        "ray", parallelism=2, reporters=ReporterSettings(ray_interval_ms=500), cpu_per_slot=0.0
    )
    with env:
        build(env, tmp_path / "checkpoints")
        env.execute_async("shown by Ray")
        (port,) = {node["MetricsExportPort"] for node in ray.nodes() if node["Alive"]}
        deadline, read = time.monotonic() + 3 * PATIENCE_S, 0.0  # an agent of Ray collects every ten seconds
        while read < NUM_RECORDS + 1:
            assert time.monotonic() < deadline, read
            time.sleep(0.5)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                lines = answer.read().decode().splitlines()
            named = "ray_headrace_taskmanager_job_task_numrecordsin{"  # Ray writes names in lower case
            own = [line for line in lines if line.startswith(named) and 'task_id="note"' in line]
            read = sum(float(line.rsplit(" ", 1)[1]) for line in own)
        assert len(own) == 2
        assert 'job_name="shown by Ray"' in own[0]


MAIN = """
import sys
from headrace import StreamExecutionEnvironment
from headrace.connectors.files import FileSink
from steps import doubled

env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(200, directory=sys.argv[1] + "/checkpoints")
numbers = env.from_sequence(1, 100).map(doubled).uid("doubled")
numbers.sink_to(FileSink.json_lines(sys.argv[1] + "/out"))
env.execute("uploaded")
"""


def test_a_zip_that_is_uploaded_runs_on_the_cluster_with_its_modules(ray_session, tmp_path):
    with zipfile.ZipFile(tmp_path / "double.zip", "w") as archive:
        archive.writestr("double/main.py", MAIN)
        archive.writestr("double/steps.py", 'def doubled(n):\n    return {"n": 2 * n}\n')
    ha = HighAvailabilitySettings(str(tmp_path / "ha"), "takes-programs")
    env = StreamExecutionEnvironment.get_execution_environment(
        "ray", parallelism=1, rest=RestSettings(bind_port="20000-32000"), high_availability=ha, cpu_per_slot=0.0
    )
    with env:
        env._connect()
        rest = env.get_rest_client()
        program = rest.upload(tmp_path / "double.zip")
        assert (tmp_path / "ha" / "takes-programs" / "programs" / program).is_file()
        (job,) = rest.run_program(program, [str(tmp_path)], parallelism=2)
        assert rest.wait(job) == "FINISHED"
        assert {one["parallelism"] for one in rest.job(job)["vertices"]} & {2}
    files = [file for file in (tmp_path / "out").rglob("*.jsonl*") if not file.name.startswith((".", "_"))]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert sorted(row["n"] for row in rows) == [2 * n for n in range(1, 101)]


OWN_CLASSES = """
import sys
from headrace import StreamExecutionEnvironment
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink
from shop.models import Count, order

env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(100, directory=sys.argv[1] + "/checkpoints")
orders = env.from_source(GeneratorSource(order, 600, records_per_second=100), None, "orders").uid("orders")
counted = orders.key_by(lambda order: order.customer).process(Count()).uid("count")
counted.rebalance().map(lambda one: {"customer": one.customer.name, "at": one.at}).uid("rows").sink_to(
    FileSink.json_lines(sys.argv[1] + "/out")
)
env.execute("own classes")
"""
MODELS = """
from dataclasses import dataclass
from headrace import KeyedProcessFunction, ValueStateDescriptor


@dataclass(frozen=True)
class Customer:
    name: str


@dataclass
class Order:
    customer: Customer
    at: int = 0


def order(n):
    return Order(Customer(f"c{n % 3}"))


class Count(KeyedProcessFunction):
    def open(self, context):
        self.last = context.get_state(ValueStateDescriptor("last"))

    def process_element(self, value, context):
        before = self.last.value()
        assert before is None or type(before) is type(value) is Order
        now = Order(value.customer, 1 + (0 if before is None else before.at))
        self.last.update(now)
        yield now
"""


def test_classes_of_a_zip_are_records_keys_and_state_and_outlive_its_folder(ray_session, tmp_path):
    """Stopped with a savepoint and begun again from it, by a second run of the program in another folder."""
    with zipfile.ZipFile(tmp_path / "shop.zip", "w") as archive:
        archive.writestr("main.py", OWN_CLASSES)
        archive.writestr("shop/__init__.py", "")
        archive.writestr("shop/models.py", MODELS)
    env = StreamExecutionEnvironment.get_execution_environment(
        "ray", parallelism=2, rest=RestSettings(bind_port="20000-32000"), cpu_per_slot=0.0
    )

    def written():
        files = [file for file in (tmp_path / "out").rglob("*.jsonl*") if not file.name.startswith((".", "_"))]
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    with env:
        env._connect()
        rest = env.get_rest_client()
        program = rest.upload(tmp_path / "shop.zip")
        (first,) = rest.run_program(program, [str(tmp_path)], parallelism=2)
        deadline = time.monotonic() + PATIENCE_S
        while not written():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        place = rest.stop_with_savepoint(first, str(tmp_path / "saved"))
        assert len(written()) < 600
        (second,) = rest.run_program(program, [str(tmp_path)], parallelism=2, from_savepoint=place)
        assert rest.wait(second) == "FINISHED"
        rest.delete_program(program)
    counts = sorted((row["customer"], row["at"]) for row in written())
    assert counts == [(f"c{customer}", at) for customer in range(3) for at in range(1, 201)]
