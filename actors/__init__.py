"""Actor systems and the only code that knows Ray: thin shells that carry messages to the core and do what it
decides.
"""
