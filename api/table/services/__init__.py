"""Connectors of tables in services that are written by key, and the names of all connectors.

May import: `headrace.table.connectors`, and what that may. Start reading at `registry`.
"""
