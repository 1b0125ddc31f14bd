"""What connectors of messages share: a thread for a client, records of messages, output that is numbered.

May import: `headrace.formats`, `headrace.engine`, `headrace.state`. Start reading at `numbered_output`.
"""
