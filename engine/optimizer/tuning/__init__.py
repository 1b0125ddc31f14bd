"""How a query over streams is run where that may be chosen: rules that change a plan, and not what it comes to.

`choices` is what there is to choose, `rules` what is done to a plan for it, last of all.

May import: `headrace.engine.optimizer` and the rooms below it. Start reading at `choices`.
"""
