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

_MODULES = "nothing: all functions are there, and create_temporary_function adds more"
_JAVA = "udf, udtf and udaf: functions are those of Python"
_MODELS = "udf: a function of Python calls the model"
_PLANS = "COMPILE PLAN and EXECUTE PLAN of SQL"

_TABLE_ENVIRONMENT = {
    "register_catalog": "create_catalog(name, options), or CREATE CATALOG",
    "get_catalog": "the list_ methods, and SHOW and DESCRIBE of SQL",
    "load_module": _MODULES,
    "unload_module": _MODULES,
    "use_modules": _MODULES,
    "list_modules": _MODULES,
    "list_full_modules": _MODULES,
    "create_java_temporary_system_function": _JAVA,
    "create_java_temporary_function": _JAVA,
    "create_java_function": _JAVA,
    "drop_function": "drop_temporary_function: functions belong to the program",
    "list_user_defined_functions": "list_functions",
    "list_materialized_tables": "list_tables: there are no materialized tables",
    "create_model": _MODELS,
    "create_temporary_model": _MODELS,
    "drop_model": _MODELS,
    "drop_temporary_model": _MODELS,
    "list_models": _MODELS,
    "list_temporary_models": _MODELS,
    "add_python_file": _ENVIRONMENT["add_python_file"],
    "add_python_archive": _ENVIRONMENT["add_python_archive"],
    "set_python_requirements": _ENVIRONMENT["set_python_requirements"],
    "load_plan": _PLANS,
    "compile_plan_sql": _PLANS,
    "execute_plan": _PLANS,
    "to_append_stream": "to_data_stream",
    "to_retract_stream": "to_changelog_stream",
}

_TABLE = {
    "get_schema": "schema",
    "get_resolved_schema": "schema",
    "to_changelog": "to_changelog_stream of the environment",
    "from_changelog": "from_changelog_stream of the environment",
}

_TABLE_RESULT = {
    "get_table_schema": "schema",
    "get_resolved_schema": "schema",
    "get_result_kind": "is_query",
}

ABSENT: dict[str, dict[str, str]] = {
    "StreamExecutionEnvironment": _ENVIRONMENT,
    "DataStream": _STREAM,
    "TableEnvironment": _TABLE_ENVIRONMENT,
    "Table": _TABLE,
    "TableResult": _TABLE_RESULT,
}
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
