"""What sinks and sources of table formats share: a table is a list of files, and every commit makes a new list.

May import: `headrace.formats`, `headrace.engine`, `headrace.state`, `headrace.connectors.files`. Start reading at
`contract` (what a format must be able to do), then `committing` (why what a checkpoint holds is committed once).
"""
