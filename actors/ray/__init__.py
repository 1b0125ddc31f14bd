"""Hosts as Ray actors: one process each. The only code that speaks with Ray about actors.

Start reading at `host`.
"""
