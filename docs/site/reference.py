"""Pages of the reference, as texts by file name; all of them are read out of the code itself.

Options come from the typed settings and what their docstrings say of each field, keys of SET from its table, commands
from the parser, routes from the OpenAPI document, names from ``__all__``; their docstrings are read by Sphinx.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import json
import re
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

__all__ = ["argument_rows", "option_rows", "pages", "public_names", "variables"]

ROOT = Path(__file__).resolve().parents[2]

INDEX = """# Reference

Made from the code when the site is built, so it says what the code does.

```{toctree}
:maxdepth: 1

configuration
command-line
rest
PAGES
```
"""

SETTINGS = {
    "A job": ("headrace.engine.kernel.config", "JobSettings"),
    "Checkpoints": ("headrace.engine.kernel.config", "CheckpointSettings"),
    "State": ("headrace.engine.kernel.config", "StateSettings"),
    "Restarts: a number of times": ("headrace.engine.kernel.config", "RestartStrategy"),
    "Restarts: a failure rate": ("headrace.engine.kernel.config", "FailureRateRestartStrategy"),
    "Restarts: pauses that grow": ("headrace.engine.kernel.config", "ExponentialDelayRestartStrategy"),
    "A cluster": ("headrace.engine.kernel.config", "ClusterSettings"),
    "High availability": ("headrace.engine.kernel.config", "HighAvailabilitySettings"),
    "REST": ("headrace.engine.kernel.rest_settings", "RestSettings"),
    "Rescaling by itself": ("headrace.engine.kernel.autoscaler_settings", "AutoscalerSettings"),
    "Reporters of metrics": ("headrace.engine.kernel.reporter_settings", "ReporterSettings"),
    "Exporters of OpenTelemetry": ("headrace.engine.kernel.reporter_settings", "ExporterSettings"),
    "Sampling": ("headrace.engine.kernel.sampling_settings", "SamplingSettings"),
    "Spark": ("headrace.actors.spark.session_size", "SparkSettings"),
    "Tables of databases": ("headrace.connectors.sql", "SqlExecutionOptions"),
}
"""Headings of the page of options, and the typed settings below each."""

CONFIGURATION = """# Configuration

A program says what it wants by setters of its environment, `get_execution_environment(option=value)`, or objects of
the classes below; SQL says it by `SET`. What a program does not say is taken from variables of the environment.
Durations are whole milliseconds (`_ms`), or texts such as `"10 s"` where a setter takes them; sizes are bytes.

"""

GROUPS = (
    ("programs", "Environments, streams and jobs", ("headrace.stream.", "headrace.jobs.")),
    ("functions", "Functions, look-ups and side outputs", ("headrace.engine.functions.", "headrace.engine.lookups.")),
    ("windows", "Event time and windows", ("headrace.engine.windows.", "headrace.engine.operators.")),
    ("state", "State and snapshots", ("headrace.state.", "headrace.engine.checkpoint.")),
    ("expressions", "Expressions and types", ("headrace.engine.columns.", "headrace.arguments.")),
    ("settings", "Settings", ("headrace.engine.kernel.",)),
    ("connectors", "Sources and sinks: the contracts", ("headrace.engine.connectors.",)),
    ("datasets", "Data sets", ("headrace.dataset.", "headrace.engine.plan.", "headrace.engine.partitions.")),
    ("errors", "Errors", ("headrace.engine.errors",)),
)
"""Pages of names of ``headrace`` itself: file, title, and the modules whose names are on it."""

MODULES = (
    ("aggregates", "headrace.functions", "Aggregates"),
    ("table", "headrace.table", "Tables and SQL"),
    ("files", "headrace.connectors.files", "Files"),
    ("kafka", "headrace.connectors.kafka", "Kafka"),
    ("http", "headrace.connectors.http", "HTTP"),
    ("websocket", "headrace.connectors.websocket", "WebSocket"),
    ("mqtt", "headrace.connectors.mqtt", "MQTT"),
    ("kinesis", "headrace.connectors.kinesis", "Amazon Kinesis"),
    ("pulsar", "headrace.connectors.pulsar", "Pulsar"),
    ("rabbitmq", "headrace.connectors.rabbitmq", "RabbitMQ"),
    ("redis", "headrace.connectors.redis", "Redis"),
    ("opensearch", "headrace.connectors.opensearch", "OpenSearch and Elasticsearch"),
    ("cassandra", "headrace.connectors.cassandra", "Cassandra"),
    ("hbase", "headrace.connectors.hbase", "HBase"),
    ("mongodb", "headrace.connectors.mongodb", "MongoDB"),
    ("databases", "headrace.connectors.sql", "Databases"),
    ("postgres-cdc", "headrace.connectors.postgres_cdc", "Changes of PostgreSQL"),
    ("iceberg", "headrace.connectors.iceberg", "Tables of Iceberg"),
    ("delta", "headrace.connectors.delta", "Tables of Delta Lake"),
    ("hudi", "headrace.connectors.hudi", "Tables of Hudi"),
    ("nifi", "headrace.connectors.nifi", "NiFi"),
    ("storm", "headrace.storm", "Storm: topologies"),
    ("hybrid", "headrace.connectors.hybrid", "Sources one after another"),
    ("datagen", "headrace.connectors.datagen", "Generated records"),
    ("sockets", "headrace.connectors.socket", "Sockets"),
    ("grouped-datasets", "headrace.dataset", "Data sets: groups, joins, iterations, Hadoop programs"),
    ("testing", "headrace.testing", "Testing"),
    ("rest-client", "headrace.rest.client", "A client of REST"),
)
"""Pages of modules: file, module, title."""


def pages() -> dict[str, str]:
    """All pages by file name."""
    made = {
        "configuration.md": configuration(),
        "command-line.md": command_line(),
        "rest.md": rest(),
        **dict(api()),
    }
    of_names = [name.removesuffix(".md") for name in made if name.startswith("python/")]
    return {"index.md": INDEX.replace("PAGES", "\n".join(of_names)), **made}


# ------------------------------------------------------------------------------------------------------------- options


def configuration() -> str:
    """The typed settings field by field, the keys of SET, and the variables of the environment."""
    lines = [CONFIGURATION]
    for title, (module, name) in SETTINGS.items():
        made = getattr(importlib.import_module(module), name)
        summary = inspect.cleandoc(made.__doc__).split("\n\n")[0]
        lines += [f"## {title}", "", f"`{name}`: {_as_markdown(summary)}", ""]
        lines += _table(("option", "default", "meaning"), option_rows(made))
    lines += [
        "## Keys of SET",
        "",
        "Of SQL, as Flink names them; what they do: [the SQL shell](../docs/guide/sql-client.md#settings).",
        "",
    ]
    lines += _table(("key", "values", ""), statement_rows())
    lines += ["## Variables of the environment", "", "What the program says itself wins.", ""]
    return "\n".join([*lines, *_table(("variable", "meaning"), variables())])


def option_rows(settings: type) -> Iterator[tuple[str, str, str]]:
    """Each field of typed settings, its default, and what the docstring says of it.

    Raises:
        ValueError: If it says nothing of a field.
    """
    meanings = _section(inspect.getdoc(settings) or "", "Attributes", "Args")
    for field in dataclasses.fields(settings):
        if field.name not in meanings:
            message = f"the docstring of {settings.__name__} says nothing of {field.name!r}"
            raise ValueError(message)
        yield f"`{field.name}`", _default(field), _as_markdown(meanings[field.name])


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return f"`{field.default_factory()!r}`"
    if field.default is dataclasses.MISSING:
        return "must be given"
    value = field.default
    if isinstance(value, Enum):
        return f"`{value.name}`"
    if dataclasses.is_dataclass(value):
        return f"`{type(value).__name__}()`"
    return f"`{value:_}`" if type(value) is int else f"`{value!r}`"


def _section(text: str, *titles: str) -> dict[str, str]:
    """The entries of a section of a docstring, by name, each as one line."""
    entries: dict[str, str] = {}
    name, is_inside = "", False
    for line in text.splitlines():
        if line and not line.startswith(" "):
            is_inside = line.rstrip(":") in titles and line.endswith(":")
        elif is_inside and (begun := re.match(r"    (\w+): (.*)", line)):
            name = begun[1]
            entries[name] = begun[2]
        elif is_inside and name and line.strip():
            entries[name] += f" {line.strip()}"
    return entries


def statement_rows() -> Iterator[tuple[str, str, str]]:
    """Each key of SET, the values that it takes, and whether it is an older name."""
    from headrace.table.settings import Settings

    for key, values, newer in Settings.described():
        yield f"`{key}`", values, f"an older name of `{newer}`" if newer else ""


def variables() -> list[tuple[str, str]]:
    """The variables that programs are told things by."""
    return [(f"`{name}`", meaning) for name, meaning in VARIABLES.items()]


VARIABLES = {
    "HEADRACE_ACTOR_SYSTEM": "where jobs run: `ray` (the default), `local` (in this process) or `sim`",
    "HEADRACE_ADDRESS": "the Ray cluster, `host:port`",
    "HEADRACE_ALLOW_NON_RESTORED_STATE": "`1`: start although the snapshot holds state without a place in the program",
    "HEADRACE_AUTOSCALER": "how jobs are rescaled by themselves: lines of `job.autoscaler.*` keys, `KEY=VALUE`",
    "HEADRACE_APPLICATION": "`1`: with high availability a dead program that is run again goes on with its jobs",
    "HEADRACE_CHECKPOINT_KEY_FILE": "the file with the keys that manifests of checkpoints are signed with",
    "HEADRACE_CLUSTER_ID": "names a cluster with high availability",
    "HEADRACE_DETACHED": "`1`: cluster and jobs outlive the program",
    "HEADRACE_DRY_RUN": "`1`: say what of the snapshot has a place in the program, and run nothing",
    "HEADRACE_EVENTS": "`1`: processes write their operational log, event by event",
    "HEADRACE_EXECUTOR": "of data sets: `spark` or `local`",
    "HEADRACE_HA_DIR": "the directory of high availability: a path or a URI that all machines reach",
    "HEADRACE_HA_ZOOKEEPER": "where leaders are elected: `host:port,host:port/path`",
    "HEADRACE_INFO": "a file to which the plan of the first job is written, which then does not run",
    "HEADRACE_LOG_DIR": "the folder of the log files of this machine's processes",
    "HEADRACE_MAX_EXPANDED_BYTES": "how large a compressed part of a snapshot may become when it is read",
    "HEADRACE_NODE_LAUNCH_TIMEOUT": "how long to wait for slots while the cluster launches nodes",
    "HEADRACE_PARALLELISM": "the parallelism of programs that say none",
    "HEADRACE_PROGRAM_FOLDER": "the folder of a program that was uploaded, whose modules go along with it",
    "HEADRACE_PROGRESS": "`terminal`, `lines` or `none`",
    "HEADRACE_RESTORE_FROM": "the savepoint or checkpoint to start from",
    "HEADRACE_RESTORE_MODE": "`no_claim` or `claim`: who owns that",
    "HEADRACE_REST": "`1`: what programs start on Ray serves REST, and links of jobs are shown",
    "HEADRACE_REST_PORT": "the port of REST, or a range of ports, for clusters that programs start",
    "HEADRACE_REST_TOKEN": "the token of a REST server elsewhere, for `headrace logs` and its like",
    "HEADRACE_SAVEPOINT_DIRECTORY": "where savepoints go unless their request says so",
    "HEADRACE_SLOT_REQUEST_TIMEOUT": "how long to wait for slots while the cluster launches no nodes",
    "HEADRACE_TARGET": "where jobs run: `session`, a cluster that runs already, or `per-job`, one of their own",
}
"""Read in many places of the code; a test finds each of them there, and none beside them."""

# ------------------------------------------------------------------------------------------------------------ commands


def command_line() -> str:
    """Each command with its arguments and options, as its parser has them."""
    from headrace.cli.main import command_parser

    lines = ["# Command line", "", "`headrace COMMAND --help` prints the same.", ""]
    for name, says, parser in _commands(command_parser(), "headrace"):
        lines += [f"## {name}", "", says[:1].upper() + says[1:] + "." if says else "", ""]
        lines += _table(("", "", "meaning"), argument_rows(parser))
    return "\n".join(lines)


def _commands(parser: argparse.ArgumentParser, prefix: str) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            says = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, command in action.choices.items():
                yield f"{prefix} {name}", says.get(name, ""), command
                yield from _commands(command, f"{prefix} {name}")


def argument_rows(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, str]]:
    """Each argument and option of a command: how it is written, what it takes, what it means."""
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        takes = action.metavar or ("|".join(map(str, action.choices)) if action.choices else "")
        if not takes and action.option_strings and action.nargs != 0:
            takes = action.dest.upper()
        written = ", ".join(action.option_strings) or action.metavar or action.dest
        meaning = (action.help or "") % {"default": action.default, "prog": "headrace"}
        yield f"`{written}`", f"`{takes}`" if action.option_strings and takes else "", meaning


# ---------------------------------------------------------------------------------------------------------------- REST


def rest() -> str:
    """Each route with its parameters, as the OpenAPI document has them."""
    document = json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))
    lines = ["# REST", "", "How to start and ask it: [the guide](../docs/guide/rest.md). The document itself: "]
    lines += ["[openapi.json](../docs/openapi.json), or `GET /openapi.json`.", ""]
    lines += _table(("route", "what it does", "needs"), _routes(document))
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if operation.get("parameters"):
                lines += [f"## {method.upper()} {path}", "", operation["summary"], ""]
                rows = ((f"`{one['name']}`", one["in"], one.get("description", "")) for one in operation["parameters"])
                lines += _table(("parameter", "in", "meaning"), rows)
    return "\n".join(lines)


def _routes(document: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"`{method.upper()} {path}`", operation["summary"], operation.get("x-right", "")


# --------------------------------------------------------------------------------------------------------------- names


def public_names() -> dict[str, str]:
    """The public names in full, each with the page that it is on.

    Raises:
        ValueError: If a name of ``headrace`` is on no page.
    """
    import headrace

    found = {}
    for name in headrace.__all__:
        if name != "__version__":
            module = headrace._MODULE_OF[name]
            page = next((page for page, _, rooms in GROUPS if module.startswith(rooms)), None)
            if page is None:
                message = f"no page of the reference is for {name} of {module}: see GROUPS"
                raise ValueError(message)
            found[f"headrace.{name}"] = f"python/{page}"
    described = {id(getattr(headrace, name)) for name in headrace.__all__}
    for page, module, _ in MODULES:
        made = importlib.import_module(module)
        for name in made.__all__:
            value = getattr(made, name)
            if id(value) not in described:  # what two modules have is described where it is first
                described.add(id(value))
                found[f"{module}.{name}"] = f"python/{page}"
    return found


def api() -> Iterator[tuple[str, str]]:
    """Pages on which Sphinx puts the docstrings of public names."""
    placed = public_names()
    titles = {f"python/{page}": title for page, title, _ in GROUPS}
    titles |= {f"python/{page}": f"{title}: {module}" for page, module, title in MODULES}
    for page, title in titles.items():
        names = [name for name, where in placed.items() if where == page]
        lines = [f"# {title}", "", " · ".join(f"{{py:obj}}`~{name}`" for name in names), ""]
        for name in names:
            module, _, own = name.rpartition(".")
            lines += ["```{eval-rst}", *_directive(module, own), "```", ""]
        yield f"{page}.md", "\n".join(lines)


def _directive(module: str, name: str) -> list[str]:
    value = getattr(importlib.import_module(module), name)
    if inspect.isclass(value):
        options = ["   :members:"]
        if not issubclass(value, Enum | tuple | BaseException):
            options.append("   :inherited-members: Generic, Protocol, object, dict, tuple")
        return [f".. autoclass:: {module}.{name}", *options]
    if callable(value):
        return [f".. autofunction:: {module}.{name}"]
    meaning = _as_markdown((type(value).__doc__ or "").split("\n\n")[0])
    return [f".. py:data:: {module}.{name}", "", f"   {meaning}"]


# --------------------------------------------------------------------------------------------------------------- texts


def _as_markdown(text: str) -> str:
    """A docstring's text on one line."""
    return " ".join(text.replace("``", "`").split())


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in row) + " |" for row in rows]
    if not lines:
        return []
    return [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *lines, ""]
