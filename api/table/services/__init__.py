"""Connectors of tables in services that are written by key, and the names of all connectors.

May import: `headrace.table.connectors`, `headrace.stream`, `headrace.connectors`, `headrace.engine`, `headrace.state`.
Start reading at `registry`.
"""
