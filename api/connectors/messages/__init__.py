"""What connectors of messages share: threads for clients, readers of what they fetch, records, output that is numbered.

May import: `headrace.formats`, `headrace.engine`, `headrace.state`. Start reading at `numbered_output`.
"""
