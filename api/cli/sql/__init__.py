"""The command ``headrace sql``: `command` has its words, `shell` runs statements, `views` shows their results,
`completion` says what may come next.

May import: all of `headrace`. Start reading at `command`, then `shell`.
"""
