"""Names that PyFlink has and Headrace has not, on purpose, and what is written instead.

A program that asks for one is told by the error; the guide has them as a table, which a test compares with this one.
"""

from __future__ import annotations

__all__ = ["ABSENT", "absence_of"]

_ENVIRONMENT = {
    "add_source": "from_source(source): source functions are gone from Flink, too",
    "create_input": "from_source(source): input formats are gone from Flink, too",
    "add_jars": "nothing: there are no jars; connectors are Python packages",
    "add_classpaths": "nothing: there is no class path",
    "add_python_file": "`ray job submit --working-dir`, or Ray's runtime_env",
    "add_python_archive": "`ray job submit --working-dir`, or Ray's runtime_env",
    "set_python_requirements": "Ray's runtime_env, or install them on the cluster",
    "set_python_executable": "the Python that Ray runs with",
    "add_default_kryo_serializer": "nothing: types are declared by output_type, all else is pickled",
    "register_type": "nothing: types are declared by output_type, all else is pickled",
    "register_type_with_kryo_serializer": "nothing: types are declared by output_type, all else is pickled",
    "register_cached_file": "a place that all machines reach, opened in a function's open(); data sets have a cache",
    "register_slot_sharing_group": "slot_sharing_group(name) on the operators; slots are all of one size",
    "enable_changelog_state_backend": 'set_state_backend("rocksdb"): its checkpoints write only what has changed',
    "is_changelog_state_backend_enabled": 'set_state_backend("rocksdb"): its checkpoints write only what has changed',
    "set_stream_time_characteristic": "a watermark strategy: records with timestamps have event time",
    "get_stream_time_characteristic": "a watermark strategy: records with timestamps have event time",
    "set_default_local_parallelism": "set_parallelism, or HEADRACE_PARALLELISM",
    "get_default_local_parallelism": "get_parallelism",
    "get_config": "the setters of the environment itself, which are those of PyFlink's ExecutionConfig",
    "configure": "get_execution_environment(option=value), the setters, or HEADRACE_ variables",
}

_STREAM = {
    "add_sink": "sink_to(sink): sink functions are gone from Flink, too",
    "set_uid_hash": "uid: what an operator was called when its state was taken",
    "get_execution_config": "get_execution_environment() and its setters",
}

ABSENT: dict[str, dict[str, str]] = {"StreamExecutionEnvironment": _ENVIRONMENT, "DataStream": _STREAM}
"""By class and name: what to use instead."""


def absence_of(owner: str, name: str) -> str:
    """Return the text of the `AttributeError`.

    Args:
        owner: The class that was asked.
        name: For what.
    """
    message = f"{owner!r} object has no attribute {name!r}"
    instead = ABSENT.get(owner, _STREAM).get(name)
    return message if instead is None else f"{name} is PyFlink's and not here; use {instead}"
