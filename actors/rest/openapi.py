"""The routes as an OpenAPI document, made of the table itself, so that neither says what the other does not."""

from __future__ import annotations

import re
from typing import Any

from .resources.routes import Parameter, RestRequest, Right, Route, RouteTable

__all__ = ["OpenApi"]

_NAMED = re.compile(r":([A-Za-z]+)")

_PATH = {
    "jobid": "the job's id",
    "vertexid": "the vertex' id: the uid of its first operator",
    "operatorid": "the operator's uid, or its name",
    "statename": "the name that the state is queryable under, or its own",
    "checkpointid": "the checkpoint's number",
    "subtaskindex": "the subtask's index, from 0",
    "taskmanagerid": "the TaskManager's name",
    "jarid": "the program's id, as it is listed",
    "filename": "one of the names that are listed",
    "triggerid": "what the request that began it was answered",
}


class OpenApi:
    """Answers with the document.

    Args:
        version: Of Headrace.
    """

    def __init__(self, version: str) -> None:
        self._version = version
        self._document: dict[str, Any] = {}

    def describe(self, table: RouteTable) -> None:
        """Make the document of a table."""
        paths: dict[str, dict[str, Any]] = {}
        for route in table.routes:
            if route.right is Right.NONE:
                continue  # a page, which nobody asks for data
            paths.setdefault(_NAMED.sub(r"{\1}", route.path), {})[route.method.lower()] = _operation(route)
        error = {"type": "object", "properties": {"errors": {"type": "array", "items": {"type": "string"}}}}
        self._document = {
            "openapi": "3.1.0",
            "info": {"title": "Headrace REST", "version": self._version},
            "paths": paths,
            "components": {
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
                "schemas": {"Errors": error},
            },
            "security": [{"token": []}],
        }

    def __call__(self, _request: RestRequest) -> Any:
        """This description."""
        return self._document


def _operation(route: Route) -> dict[str, Any]:
    name = "_".join(part.lstrip(":").replace(".", "_") for part in route.parts)
    parameters = [
        {"name": name, "in": "path", "required": True, "description": _PATH[name], "schema": {"type": "string"}}
        for name in _NAMED.findall(route.path)
    ]
    parameters += [
        {
            "name": parameter.name,
            "in": "query",
            "required": parameter.is_required,
            "description": parameter.description,
            "schema": _schema(parameter),
            **({"style": "form", "explode": False} if parameter.is_list else {}),
        }
        for parameter in route.query
    ]
    body: dict[str, Any] = {}
    if route.body:
        properties = {field.name: {**_schema(field), "description": field.description} for field in route.body}
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        body = {"requestBody": {"content": {"application/json": {"schema": schema}}}}
    if route.most_bytes:
        form = {"type": "object", "properties": {"jarfile": {"type": "string", "format": "binary"}}}
        body = {"requestBody": {"content": {"multipart/form-data": {"schema": form}}}}
    kind = {"type": "string"} if route.media_type.startswith("text/") else {}
    errors = {
        "description": "why not",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Errors"}}},
    }
    return {
        "operationId": f"{route.method.lower()}_{name}",
        "summary": route.summary,
        "x-right": route.right.value,
        "parameters": parameters,
        **body,
        "responses": {
            str(route.status): {"description": "all is well", "content": {route.media_type: {"schema": kind}}},
            "default": errors,
        },
    }


def _schema(parameter: Parameter) -> dict[str, Any]:
    one: dict[str, Any] = {"type": parameter.kind}
    if parameter.kind == "array":
        one["items"] = {"type": "string"}
    if parameter.choices:
        one["enum"] = list(parameter.choices)
    return {"type": "array", "items": one} if parameter.is_list else one
