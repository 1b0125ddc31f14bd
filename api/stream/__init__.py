"""Streams: how a program is written down. Names are PyFlink's.

`environment` is where it begins and is sent away, `sources` what it reads; `data_stream`, `keyed_stream`,
`connected_streams`, `windowed_stream` and `joined_streams` record transformations; nothing here computes.

May import: `headrace.connectors`, `headrace.jobs`, `headrace.rest`, `headrace.arguments`, `headrace.engine`,
`headrace.state`; actors in `environment` only, inside functions. Start reading at `environment`, then `data_stream`.
"""
