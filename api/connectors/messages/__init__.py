"""What connectors of messages share: arguments, threads for clients, readers of what they fetch, numbered output.

May import: `headrace.formats`, `headrace.engine`, `headrace.state`. Start reading at `numbered_output`.
"""
