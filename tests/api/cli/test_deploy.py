"""``headrace deploy``: what it prints KubeRay and Ray take, by their own schemas, and what is wrong is refused."""

from __future__ import annotations

import copy
import json
from importlib import metadata
from pathlib import Path

import pytest

from headrace.actors.ray.node_types import NodeType, types_in
from headrace.cli.main import main

ROOT = Path(__file__).resolve().parents[3]
SCHEMAS = {"RayCluster": "rayclusters", "RayJob": "rayjobs"}

jsonschema = pytest.importorskip("jsonschema")
yaml = pytest.importorskip("yaml")


def printed(capsys, *options):
    assert main(["deploy", *options]) == 0
    return capsys.readouterr().out


def refused(capsys, *options):
    assert main(["deploy", *options]) == 1
    return capsys.readouterr().err


def strict(schema):
    """The schema, in which a field that it does not know is an error: Kubernetes would leave it out in silence."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if isinstance(found.get("properties"), dict) and not found.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    return found


def check(manifest):
    stored = json.loads((ROOT / "tests" / "data" / "kuberay" / f"{SCHEMAS[manifest['kind']]}.json").read_text())
    schema = strict(stored["schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(manifest, schema)


def test_a_session_is_a_cluster_that_kuberay_takes(capsys):
    text = printed(capsys, "kubernetes", "--image", "registry/headrace:1", "--cpu", "2", "--namespace", "streams")
    manifest = yaml.safe_load(text)
    check(manifest)
    assert (manifest["kind"], manifest["metadata"]) == ("RayCluster", {"name": "headrace", "namespace": "streams"})
    spec = manifest["spec"]
    assert spec["rayVersion"] == metadata.version("ray")
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}, "no TaskManager is put there"
    [workers] = spec["workerGroupSpecs"]
    assert (workers["minReplicas"], workers["maxReplicas"], workers["rayStartParams"]) == (0, 8, {"num-cpus": "2"})
    [container] = workers["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "8Gi"}
    assert container["image"] == "registry/headrace:1"


def test_an_application_is_a_job_that_ends_with_its_program(capsys):
    options = ["--mode", "application", "--image", "i", "--pip", "orjson", "--env", "A=b=c", "--max-workers", "3"]
    manifest = yaml.safe_load(printed(capsys, "kubernetes", *options, "programs/job.py", "--since", "a b"))
    check(manifest)
    spec = manifest["spec"]
    assert spec["entrypoint"] == "python programs/job.py --since 'a b'"
    assert yaml.safe_load(spec["runtimeEnvYAML"]) == {"env_vars": {"A": "b=c"}, "pip": ["orjson"]}
    assert (spec["shutdownAfterJobFinishes"], spec["backoffLimit"]) == (True, 0)
    assert spec["rayClusterSpec"]["workerGroupSpecs"][0]["maxReplicas"] == 3


@pytest.mark.parametrize("change", ["field", "type", "enum"])
def test_the_schema_finds_what_is_wrong(capsys, change):
    manifest = yaml.safe_load(printed(capsys, "kubernetes", "--image", "i"))
    wrong = copy.deepcopy(manifest)
    workers = wrong["spec"]["workerGroupSpecs"][0]
    if change == "field":
        workers["maxReplica"] = workers.pop("maxReplicas")
    elif change == "type":
        workers["rayStartParams"]["num-cpus"] = 2
    else:
        wrong["spec"]["authOptions"]["mode"] = "tokens"
    with pytest.raises(jsonschema.ValidationError):
        check(wrong)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--mode", "service"], "a RayService runs applications of Ray Serve"),
        (["--name", "Orders"], "a name must be of small letters"),
        (["--memory", "8 GB"], "a size of memory is a number with Ki, Mi, Gi"),
        (["--min-workers", "9"], "from 0 to --max-workers; got 9, 8"),
        (["--mode", "application"], "an application is a program in the image; got None"),
        (["job.py"], "a session has no program of its own; got 'job.py'"),
        (["--mode", "application", "--env", "A", "job.py"], "--env takes NAME=VALUE; got 'A'"),
    ],
)
def test_what_would_not_work_is_refused(capsys, options, said):
    assert said in refused(capsys, "kubernetes", "--image", "i", *options)


def test_an_image_has_ray_of_this_version_and_what_the_package_is_built_from(capsys):
    lines = printed(capsys, "image", "--python", "3.12", "--extras", "cluster,kafka", "--programs", "jobs").splitlines()
    assert lines[1] == f"FROM rayproject/ray:{metadata.version('ray')}-py312"
    copied = {line.split()[-2] for line in lines if line.startswith("COPY")} - {"jobs"}
    assert {"api", "engine", "actors", "state"} < copied
    assert all((ROOT / name).exists() for name in copied)
    assert "RUN pip install --no-cache-dir '/home/ray/headrace[cluster,kafka]' && headrace --version" in lines
    assert "--extras takes names by commas" in refused(capsys, "image", "--extras", "a;b")


def test_the_file_for_aws_is_the_one_of_this_repository(capsys):
    assert printed(capsys, "ray-cluster") == (ROOT / "ray-cluster.yaml").read_text()


@pytest.mark.parametrize("options", [[], ["--provider", "gcp", "--project", "my-streams"]])
def test_ray_takes_the_files_by_its_own_schema(capsys, options):
    import ray.autoscaler

    config = yaml.safe_load(printed(capsys, "ray-cluster", *options))
    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    jsonschema.validate(config, schema)
    assert list(types_in(config)) == [NodeType("worker", 4.0, 8)]
    assert "@" not in json.dumps(config)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**config, "max_worker": 3}, schema)


def test_google_cloud_has_a_project_and_machines_of_its_own(capsys):
    config = yaml.safe_load(printed(capsys, "ray-cluster", "--provider", "gcp", "--project", "my-streams"))
    assert config["provider"]["project_id"] == "my-streams"
    assert {node["node_config"]["machineType"] for node in config["available_node_types"].values()} == {
        "n2-standard-2",
        "n2-standard-4",
    }
    assert "google-api-python-client" in config["setup_commands"][-1]
    assert "Google Cloud needs a project" in refused(capsys, "ray-cluster", "--provider", "gcp")
    assert "only Google Cloud has projects" in refused(capsys, "ray-cluster", "--project", "p")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("kubernetes", "--image", "x", "--namespace", "A b"), "a namespace must be of small letters"),
        (("kubernetes", "--image", "a: b # c"), "an image is named as in"),
        (("kubernetes", "--image", ""), "an image is named as in"),
        (("kubernetes", "--image", "x", "--env", "A=1"), "--env and --pip are of an application"),
        (("kubernetes", "--image", "x", "--pip", "y"), "--env and --pip are of an application"),
        (("kubernetes", "--image", "x", "--mode", "application", "--env", "A B=1", "p.py"), "--env takes NAME=VALUE"),
        (("image", "--programs", "my programs"), "--programs takes a path"),
        (("image", "--programs", "a\nRUN more"), "--programs takes a path"),
        (("ray-cluster", "--provider", "gcp", "--project", "a: b"), "a project's id is of"),
        (("ray-cluster", "--provider", "gcp", "--project", '"x'), "a project's id is of"),
    ],
)
def test_values_that_would_end_up_as_other_text_are_refused(capsys, options, said):
    assert said in refused(capsys, *options)
