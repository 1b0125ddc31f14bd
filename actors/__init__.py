"""Actor systems, and the only code that knows Ray and Spark.

They carry messages to the machines of `headrace.engine` and do what these decide. Start reading at `host`.
"""
