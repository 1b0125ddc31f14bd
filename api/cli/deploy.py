"""``headrace deploy``: what starts a cluster elsewhere, as text to read, change and keep.

It prints and touches nothing: manifests for KubeRay, a recipe for a container image, a file for Ray's cluster launcher.

Source: KubeRay's ``ray.io/v1`` resources; Ray's cluster launcher.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable
from importlib import metadata, resources
from typing import Any

from headrace.engine.errors import ConfigurationError

__all__ = ["add_command", "cluster_file", "dockerfile", "manifest"]

HEAD_CPU, HEAD_MEMORY = "2", "8Gi"
"""Of the head's pod: Dispatcher, JobManagers, and the programs that are submitted."""

PORTS = (("gcs-server", 6379), ("dashboard", 8265), ("client", 10001))
"""Of the head's container, by the names that KubeRay makes its service of."""

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,47}[a-z0-9])?")
"""Of a resource of Kubernetes; KubeRay makes longer names of it."""

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._/:@]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PROJECT = re.compile(r"[a-z][-a-z0-9.:]*[a-z0-9]")
"""Of Google Cloud."""

_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?")


def add_command(commands: Any, positive: Callable[[str], int]) -> None:
    """Add the command to the parser's."""
    deploy = commands.add_parser("deploy", help="print what starts a cluster elsewhere: Kubernetes, an image, a cloud")
    kinds = deploy.add_subparsers(dest="kind", metavar="KIND", required=True)

    kubernetes = kinds.add_parser("kubernetes", help="a manifest for KubeRay: a session cluster, or an application")
    kubernetes.add_argument(
        "--mode",
        choices=("session", "application", "service"),
        default="session",
        help="session: a RayCluster; application: a RayJob, which ends with its program (session)",
    )
    kubernetes.add_argument("--name", default="headrace", help="of the resource (headrace)")
    kubernetes.add_argument("--namespace", metavar="NAME", help="of Kubernetes (what kubectl says)")
    kubernetes.add_argument("--image", required=True, help="with Ray and Headrace; see 'headrace deploy image'")
    kubernetes.add_argument("--cpu", type=positive, default=4, metavar="N", help="cores, so slots, of a worker (4)")
    kubernetes.add_argument("--memory", default="8Gi", metavar="SIZE", help="of a worker (8Gi)")
    kubernetes.add_argument("--max-workers", type=positive, default=8, metavar="N", help="as many at most (8)")
    kubernetes.add_argument("--min-workers", type=int, default=0, metavar="N", help="as many always (0)")
    kubernetes.add_argument("--pip", action="append", default=[], metavar="PACKAGE", help="that an application needs")
    kubernetes.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="a variable of an application"
    )
    kubernetes.add_argument("program", nargs="?", help="of an application: a path in the image")
    kubernetes.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    kubernetes.set_defaults(function=_kubernetes)

    image = kinds.add_parser("image", help="a Dockerfile, to be built in a clone of Headrace")
    image.add_argument("--python", default="3.11", choices=("3.10", "3.11", "3.12"), help="its version (3.11)")
    image.add_argument("--extras", default="cluster", metavar="NAMES", help="of Headrace, by commas (cluster)")
    image.add_argument("--programs", metavar="DIR", help="a folder to put at /home/ray/programs")
    image.set_defaults(function=_image)

    cluster = kinds.add_parser("ray-cluster", help="a file for 'ray up', from a clone of Headrace: AWS or Google Cloud")
    cluster.add_argument("--provider", choices=("aws", "gcp"), default="aws", help="the cloud (aws)")
    cluster.add_argument("--project", metavar="ID", help="of Google Cloud")
    cluster.set_defaults(function=_ray_cluster)


def _kubernetes(options: argparse.Namespace) -> int:
    print(_as_yaml(manifest(options)), end="")
    return 0


def _image(options: argparse.Namespace) -> int:
    print(dockerfile(options.python, options.extras.split(","), options.programs), end="")
    return 0


def _ray_cluster(options: argparse.Namespace) -> int:
    print(cluster_file(options.provider, options.project), end="")
    return 0


# ---------------------------------------------------------------------------------------------------------- Kubernetes
def manifest(options: argparse.Namespace) -> dict[str, Any]:
    """Return the resource that the options ask for.

    Raises:
        ConfigurationError: If they do not go together, or KubeRay would refuse a name or a size.
    """
    if options.mode == "service":
        message = "a RayService runs applications of Ray Serve, and replaces one cluster by another for an upgrade"
        hint = "A stream has state, and only one of two may write: use --mode session or application, and savepoints."
        raise ConfigurationError(message, hint=hint)
    if _NAME.fullmatch(options.name) is None:
        message = f"a name must be of small letters, digits and '-', 49 at most; got {options.name!r}"
        raise ConfigurationError(message)
    if options.namespace is not None and _NAMESPACE.fullmatch(options.namespace) is None:
        message = f"a namespace must be of small letters, digits and '-', 63 at most; got {options.namespace!r}"
        raise ConfigurationError(message)
    if _IMAGE.fullmatch(options.image) is None:
        message = f"an image is named as in 'registry/headrace:1.0'; got {options.image!r}"
        raise ConfigurationError(message)
    if _QUANTITY.fullmatch(options.memory) is None:
        message = f"a size of memory is a number with Ki, Mi, Gi ...; got {options.memory!r}"
        raise ConfigurationError(message)
    if not 0 <= options.min_workers <= options.max_workers:
        message = f"--min-workers must be from 0 to --max-workers; got {options.min_workers}, {options.max_workers}"
        raise ConfigurationError(message)
    is_application = options.mode == "application"
    if is_application != (options.program is not None):
        what = "an application is a program in the image" if is_application else "a session has no program of its own"
        message = f"{what}; got {options.program!r}"
        raise ConfigurationError(message, hint="Programs are submitted to a session by 'headrace run-application'.")
    if not is_application and (options.env or options.pip):
        message = "--env and --pip are of an application; programs that are submitted to a session bring their own"
        raise ConfigurationError(message, hint="headrace run-application --runtime-env FILE")
    named = {"name": options.name, **({"namespace": options.namespace} if options.namespace else {})}
    spec = _job_spec(options) if is_application else _cluster_spec(options)
    kind = "RayJob" if is_application else "RayCluster"
    return {"apiVersion": "ray.io/v1", "kind": kind, "metadata": named, "spec": spec}


def _cluster_spec(options: argparse.Namespace) -> dict[str, Any]:
    head = _pod("ray-head", options.image, HEAD_CPU, HEAD_MEMORY)
    head["spec"]["containers"][0]["ports"] = [{"name": name, "containerPort": port} for name, port in PORTS]
    return {
        "rayVersion": metadata.version("ray"),
        "authOptions": {"mode": "token"},
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {"upscalingMode": "Default", "idleTimeoutSeconds": 300},
        # No TaskManager gets any core of the head.
        "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": head},
        "workerGroupSpecs": [
            {
                "groupName": "worker",
                "replicas": options.min_workers,
                "minReplicas": options.min_workers,
                "maxReplicas": options.max_workers,
                "rayStartParams": {"num-cpus": str(options.cpu)},
                "template": _pod("ray-worker", options.image, str(options.cpu), options.memory),
            }
        ],
    }


def _pod(name: str, image: str, cpu: str, memory: str) -> dict[str, Any]:
    size = {"cpu": cpu, "memory": memory}
    container = {"name": name, "image": image, "resources": {"limits": size, "requests": dict(size)}}
    return {"spec": {"containers": [container]}}


def _job_spec(options: argparse.Namespace) -> dict[str, Any]:
    variables: dict[str, str] = {}
    for pair in options.env:
        name, separator, value = pair.partition("=")
        if not separator or _VARIABLE.fullmatch(name) is None:
            message = f"--env takes NAME=VALUE; got {pair!r}"
            raise ConfigurationError(message)
        variables[name] = value
    environment: dict[str, Any] = {"env_vars": variables} if variables else {}
    if options.pip:
        environment["pip"] = options.pip
    return {
        "entrypoint": shlex.join(["python", options.program, *options.arguments]),
        "submissionMode": "K8sJobMode",
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": 600,
        # A program that is started again would begin from nothing, beside what the first one has written.
        "backoffLimit": 0,
        **({"runtimeEnvYAML": _as_yaml(environment)} if environment else {}),
        "rayClusterSpec": _cluster_spec(options),
    }


def _as_yaml(value: Any) -> str:
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, width=120))


# --------------------------------------------------------------------------------------------------------------- image
def dockerfile(python: str, extras: list[str], programs: str | None) -> str:
    """Return a recipe for an image, on Ray's own of the version that is installed here."""
    for extra in extras:
        if re.fullmatch(r"[a-z]+", extra) is None:
            message = f"--extras takes names by commas, as 'cluster,kafka'; got {extra!r}"
            raise ConfigurationError(message)
    if programs is not None and re.fullmatch(r"[-\w./]+", programs) is None:
        message = f"--programs takes a path of letters, digits, '-', '_', '.' and '/'; got {programs!r}"
        raise ConfigurationError(message)
    lines = [
        "# docker build -t REGISTRY/headrace -f Dockerfile .    in a clone of Headrace",
        f"FROM rayproject/ray:{metadata.version('ray')}-py{python.replace('.', '')}",
        "COPY --chown=ray pyproject.toml README.md LICENSE /home/ray/headrace/",
        *(f"COPY --chown=ray {folder} /home/ray/headrace/{folder}" for folder in ("api", "engine", "actors", "state")),
        f"RUN pip install --no-cache-dir '/home/ray/headrace[{','.join(extras)}]' && headrace --version",
    ]
    if programs is not None:
        lines.append(f"COPY --chown=ray {programs} /home/ray/programs")
    return "\n".join([*lines, "WORKDIR /home/ray"]) + "\n"


# -------------------------------------------------------------------------------------------------------------- clouds
def cluster_file(provider: str, project: str | None) -> str:
    """Return a file for Ray's cluster launcher.

    Raises:
        ConfigurationError: If the provider needs a project and there is none, or the other way round.
    """
    if (provider == "gcp") != (project is not None):
        message = "Google Cloud needs a project" if provider == "gcp" else "only Google Cloud has projects"
        raise ConfigurationError(message, hint="--provider gcp --project ID")
    if project is not None and _PROJECT.fullmatch(project) is None:
        message = f"a project's id is of small letters, digits and '-'; got {project!r}"
        raise ConfigurationError(message, hint="gcloud projects list")
    folder = resources.files("headrace.cli") / "project"
    text = (folder / "ray-cluster.yaml.txt").read_text(encoding="utf-8")
    parts = (folder / f"ray-cluster-{provider}.txt").read_text(encoding="utf-8").split("----\n")
    for name, part in zip(("ABOUT", "PROVIDER", "HEAD", "WORKER", "PACKAGES"), parts, strict=True):
        text = text.replace(f"@{name}@\n", part)
    return text.replace("@PROJECT@", project or "")
