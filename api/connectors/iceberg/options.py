"""What arguments of sinks and sources of Iceberg's tables must be."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.engine.errors import ConfigurationError

__all__ = ["require_catalog", "require_table"]


def require_table(table: str) -> None:
    """See that a table has a name.

    Raises:
        ConfigurationError: If not.
    """
    if "." not in table or not all(table.split(".")):
        message = f"a table of Iceberg is named namespace.name; got {table!r}"
        raise ConfigurationError(message)


def require_catalog(catalog: Mapping[str, str]) -> dict[str, str]:
    """Return a catalog's properties as they travel to slots.

    Raises:
        ConfigurationError: If they say nothing of where it is.
    """
    wrong = [name for name, value in catalog.items() if not isinstance(name, str) or not isinstance(value, str)]
    if wrong:
        message = f"properties of a catalog are texts; {wrong[0]!r} is not"
        raise ConfigurationError(message)
    if not {"type", "uri", "py-catalog-impl"} & set(catalog):
        message = "catalog needs 'type' (sql, rest ...) or 'uri'"
        raise ConfigurationError(message, hint="{'type': 'sql', 'uri': 'sqlite:////path/catalog.db', 'warehouse': ...}")
    return dict(catalog)
