"""The table of routes: all that can be asked, and the right that it takes. There is no other way in.

Paths are Flink's. What the engine cannot answer has no route; ``docs/guide/rest.md`` lists it.
"""

from __future__ import annotations

from headrace.engine.kernel.rest_settings import RestSettings

from .openapi import OpenApi
from .pages import page_routes
from .resources import checkpoints, cluster, jobs, keyed_states, logs, metrics, operations, vertices
from .resources.programs import Programs
from .resources.routes import Handler, Parameter, Right, Route, RouteTable
from .resources.sampling import FLAME_GRAPH_TYPES, Samplings

__all__ = ["route_table"]

_GET = Parameter("get", "ids of the metrics whose values are wanted; without it ids are listed", is_list=True)
_AGGREGATIONS = Parameter(
    "agg", "what values are to come to; all of them by default", is_list=True, choices=tuple(metrics.AGGREGATIONS)
)
_TRIGGER = Parameter("triggerId", "the id of the request; one is made up without it")
_FORMAT = Parameter("formatType", "of the savepoint: there is one format", choices=("CANONICAL",))

_JOB = "/jobs/:jobid"
_VERTEX = f"{_JOB}/vertices/:vertexid"
_CHECKPOINTS = f"{_JOB}/checkpoints"
_STATES = f"{_JOB}/operators/:operatorid/states"
_CONSISTENCY = Parameter(
    "consistency", "as it is now (live), or as in the newest complete checkpoint", choices=keyed_states.CONSISTENCIES
)


_LOGS: tuple[tuple[str, Handler, str], ...] = (
    ("/taskmanagers/:taskmanagerid/log", logs.task_manager_log, "The end of a TaskManager's own log."),
    ("/taskmanagers/:taskmanagerid/logs/:filename", logs.task_manager_log_file, "The end of a log."),
    ("/jobmanager/log", logs.job_manager_log, "The end of the head's own log."),
    ("/jobmanager/logs/:filename", logs.job_manager_log_file, "The end of a log."),
)


def route_table(
    settings: RestSettings,
    version: str,
    changes: operations.Operations,
    samplings: Samplings,
    records: Handler,
    rejected: Handler,
    hot_keys: Handler,
    kept: keyed_states.StatesOfKeys,
    programs: Programs,
) -> RouteTable:
    """Return all routes of a server.

    Args:
        settings: The server's.
        version: Of Headrace.
        changes: What it has begun.
        samplings: What it finds out by looking.
        records: Shows records.
        rejected: Shows the records that came late or could not be decoded.
        hot_keys: Shows the keys that are read most.
        kept: Shows state by key.
        programs: Takes programs, and runs them.
    """
    description = OpenApi(version)
    read: list[tuple[str, Handler, str, tuple[Parameter, ...]]] = [
        ("/overview", cluster.overview, "Slots and jobs of the cluster, counted.", ()),
        (
            "/config",
            cluster.Configuration(version, settings, takes_programs=programs.is_there),
            "What pages need to know of the server.",
            (),
        ),
        ("/openapi.json", description, "This description.", ()),
        ("/jobs", jobs.job_ids, "All jobs with their states.", ()),
        ("/jobs/overview", jobs.jobs_overview, "All jobs, with what their tasks do.", ()),
        (
            "/jobs/metrics",
            metrics.jobs_metrics,
            "Metrics over all jobs, or some.",
            (_GET, _AGGREGATIONS, Parameter("jobs", "ids of jobs", is_list=True)),
        ),
        (_JOB, jobs.job, "One job in full.", ()),
        (f"{_JOB}/status", jobs.status, "The state of a job.", ()),
        (f"{_JOB}/plan", jobs.plan, "The graph of a job.", ()),
        (f"{_JOB}/config", jobs.configuration, "What a job was submitted with.", ()),
        (
            f"{_JOB}/exceptions",
            jobs.exceptions,
            "Why a job was restarted, or has failed: newest first.",
            (Parameter("maxExceptions", f"how many at most ({jobs.DEFAULT_EXCEPTIONS})", "integer"),),
        ),
        (f"{_JOB}/accumulators", jobs.accumulators, "What user functions have accumulated.", ()),
        (f"{_JOB}/metrics", metrics.job_metrics, "Metrics of a job as such.", (_GET,)),
        (
            f"{_JOB}/watermarks",
            vertices.watermarks_of_job,
            "Where event time is in all operators of a job.",
            (Parameter("makers", "whether only operators that make watermarks are told of (false)", "boolean"),),
        ),
        (_CHECKPOINTS, checkpoints.statistics, "Counts, a summary and the newest checkpoints of a job.", ()),
        (f"{_CHECKPOINTS}/config", checkpoints.configuration, "How a job takes checkpoints.", ()),
        (f"{_CHECKPOINTS}/details/:checkpointid", checkpoints.checkpoint, "One checkpoint, vertex by vertex.", ()),
        (
            f"{_CHECKPOINTS}/details/:checkpointid/subtasks/:vertexid",
            checkpoints.vertex_of_checkpoint,
            "One vertex of a checkpoint, subtask by subtask.",
            (),
        ),
        (f"{_JOB}/savepoints/:triggerid", operations.savepoint_status, "How a savepoint, or a stop, stands.", ()),
        (
            f"{_CHECKPOINTS}/:triggerid",
            changes.checkpoint_status,
            "How a checkpoint stands that this head has been asked for.",
            (),
        ),
        (f"{_JOB}/rescaling/:triggerid", changes.rescale_status, "How a rescale stands that this head has begun.", ()),
        (f"{_JOB}/rescales/history", jobs.rescales, "How a job came to its parallelism, newest first.", ()),
        (_VERTEX, vertices.vertex, "A vertex with its subtasks.", ()),
        (f"{_VERTEX}/backpressure", samplings.backpressure, "How busy, idle and held up each subtask is.", ()),
        (
            f"{_VERTEX}/flamegraph",
            samplings.flame_graphs,
            "The calls that subtasks were found in when they were looked at.",
            (
                Parameter("type", "what counts: all, or with or without the processor", choices=FLAME_GRAPH_TYPES),
                Parameter("subtaskindex", "of one subtask; of all without it", "integer"),
            ),
        ),
        (f"{_VERTEX}/watermarks", vertices.watermarks, "The watermark that each subtask has given on last.", ()),
        (f"{_VERTEX}/subtasktimes", vertices.subtask_times, "When each subtask came into its states.", ()),
        (f"{_VERTEX}/taskmanagers", vertices.task_managers, "A vertex by the TaskManagers it is on.", ()),
        (f"{_VERTEX}/metrics", metrics.vertex_metrics, "Metrics of a vertex, subtask by subtask.", (_GET,)),
        (
            f"{_VERTEX}/subtasks/metrics",
            metrics.subtasks_metrics,
            "Metrics over the subtasks of a vertex.",
            (_GET, _AGGREGATIONS, Parameter("subtasks", "indices of subtasks", is_list=True)),
        ),
        (f"{_VERTEX}/subtasks/:subtaskindex", vertices.subtask, "The current attempt of one subtask.", ()),
        (f"{_VERTEX}/subtasks/:subtaskindex/metrics", metrics.subtask_metrics, "Metrics of one subtask.", (_GET,)),
        (
            _STATES,
            kept.names,
            "Which states of an operator may be asked for, and of what type keys are.",
            (_CONSISTENCY,),
        ),
        ("/taskmanagers", cluster.task_managers, "All TaskManagers.", ()),
        ("/taskmanagers/:taskmanagerid", cluster.task_manager, "One TaskManager, and what it is used for.", ()),
        ("/jobmanager/metrics", metrics.job_manager_metrics, "Metrics of the cluster as such.", (_GET,)),
        ("/taskmanagers/:taskmanagerid/logs", logs.task_manager_logs, "Logs of a TaskManager and its slots.", ()),
        ("/jobmanager/logs", logs.job_manager_logs, "Logs of the head that is asked, and of its JobManagers.", ()),
        (
            f"{_JOB}/logs",
            logs.job_log,
            "What a job has logged, line by line, from all its processes.",
            (
                Parameter("operator", "of one operator: a part of its name"),
                Parameter("subtask", "of one subtask", "integer"),
                Parameter("after", "only what has come since the answer that said this"),
            ),
        ),
    ]
    routes = [
        *(Route("GET", path, Right.READ, handler, summary, query) for path, handler, summary, query in read),
        Route(
            "GET",
            "/metrics",
            Right.READ,
            metrics.prometheus,
            "Everything that is measured, for Prometheus to fetch.",
            media_type="text/plain",
        ),
        *(
            Route("GET", path, Right.READ, handler, summary, media_type="text/plain")
            for path, handler, summary in _LOGS
        ),
        Route(
            "GET",
            f"{_VERTEX}/samples",
            Right.WRITE,
            records,
            "The newest records that the subtasks of a vertex are sent, where the cluster allows that.",
            (
                Parameter("edge", "the number of one of its inputs, as the plan has it", "integer", is_required=True),
                Parameter("num", "how many of each subtask (10)", "integer"),
                Parameter("mask", "names of fields whose values are hidden; * for all values", is_list=True),
            ),
        ),
        Route(
            "GET",
            f"{_VERTEX}/rejected",
            Right.WRITE,
            rejected,
            "The last records of a vertex that came late or could not be decoded, where the cluster shows records.",
            (
                Parameter("num", "how many of each operator, subtask and kind (10)", "integer"),
                Parameter("mask", "names of fields whose values are hidden; * for all values", is_list=True),
            ),
        ),
        Route(
            "GET",
            f"{_VERTEX}/hotkeys",
            Right.WRITE,
            hot_keys,
            "The keys that subtasks of a vertex are sent most, where the cluster shows records.",
            (
                Parameter("edge", "the number of one of its inputs, as the plan has it", "integer", is_required=True),
                Parameter("subtask", "of one subtask; of all without it", "integer"),
                Parameter("num", "how many of each subtask (5)", "integer"),
                Parameter("mask", "names of fields whose values are hidden; * for all values", is_list=True),
            ),
        ),
        Route(
            "GET",
            f"{_STATES}/:statename",
            Right.WRITE,
            kept.state,
            "What a queryable state holds for a key, where the cluster shows records.",
            (
                Parameter("key", "the key in JSON, a list for a tuple; a text may be without quotes", is_required=True),
                _CONSISTENCY,
                Parameter("window", "start and end of one window, in epoch milliseconds", is_list=True),
                Parameter("mask", "names of fields whose values are hidden; * for all values", is_list=True),
            ),
        ),
        *_changes(changes),
        *_programs(programs, settings.max_program_bytes),
        *page_routes(),
    ]
    table = RouteTable(routes)
    description.describe(table)
    return table


def _changes(changes: operations.Operations) -> list[Route]:
    return [
        Route(
            "PATCH",
            _JOB,
            Right.WRITE,
            operations.terminate,
            "Cancel a job, or stop it in order with a last checkpoint.",
            (Parameter("mode", "how (cancel); the last two in order", choices=operations.TERMINATION_MODES),),
            status=202,
        ),
        Route(
            "POST",
            f"{_JOB}/savepoints",
            Right.WRITE,
            operations.savepoint,
            "Take a savepoint.",
            body=(
                Parameter("target-directory", "an absolute path or a URI; the job's default without it"),
                Parameter("cancel-job", "whether the job ends with it, in order", "boolean"),
                _FORMAT,
                _TRIGGER,
            ),
            status=202,
        ),
        Route(
            "POST",
            _CHECKPOINTS,
            Right.WRITE,
            changes.checkpoint,
            "Take a checkpoint now.",
            body=(
                Parameter(
                    "checkpointType", "with all state, or as configured (CONFIGURED)", choices=("CONFIGURED", "FULL")
                ),
                _TRIGGER,
            ),
            status=202,
        ),
        Route(
            "POST",
            f"{_JOB}/stop",
            Right.WRITE,
            operations.stop,
            "End a job in order, with a savepoint.",
            body=(
                Parameter("targetDirectory", "an absolute path or a URI; the job's default without it"),
                Parameter("drain", "whether windows and timers fire first, as if all input had ended", "boolean"),
                _FORMAT,
                _TRIGGER,
            ),
            status=202,
        ),
        Route(
            "PATCH",
            f"{_JOB}/rescaling",
            Right.WRITE,
            changes.rescale,
            "Run a job on at another parallelism, from a fresh checkpoint.",
            (Parameter("parallelism", "of all operators that can be parallel", "integer"),),
            body=(Parameter("operators", "parallelism by operator uid or name", "object"),),
            status=202,
        ),
    ]


def _programs(programs: Programs, most_bytes: int) -> list[Route]:
    """Programs, under Flink's paths; what it calls a jar is a Python file or a zip here."""
    return [
        Route("GET", "/jars", Right.WRITE, programs.all, "The programs that were uploaded, newest first."),
        Route(
            "POST",
            "/jars/upload",
            Right.WRITE,
            programs.upload,
            "Upload a program: a Python file, or a zip of a project.",
            most_bytes=most_bytes,
        ),
        Route("DELETE", "/jars/:jarid", Right.WRITE, programs.delete, "Delete a program; its jobs go on."),
        Route(
            "POST",
            "/jars/:jarid/run",
            Right.WRITE,
            programs.run,
            "Run a program beside this head; it submits its jobs to this cluster.",
            body=(
                Parameter(
                    "entryClass", "the file of a zip that is run (main.py, __main__.py, job.py, or the only one)"
                ),
                Parameter("programArgsList", "its arguments", "array"),
                Parameter("parallelism", "its default parallelism", "integer"),
                Parameter("savepointPath", "a savepoint or checkpoint to start from: an absolute path or a URI"),
                Parameter("allowNonRestoredState", "whether state without a place in it may be lost", "boolean"),
                Parameter("claimMode", "whose the snapshot is from then on", choices=("NO_CLAIM", "CLAIM")),
            ),
            status=202,
        ),
        Route(
            "GET",
            "/jars/:jarid/runs/:triggerid",
            Right.WRITE,
            programs.run_status,
            "How the run of a program stands that this head has begun: its jobs, and what it has printed.",
        ),
    ]
