"""What clients find out by asking several machines of a cluster: `state_queries`, for programs and for REST.

May import: `headrace.engine`, `headrace.state`. Start reading at `state_queries`.
"""
