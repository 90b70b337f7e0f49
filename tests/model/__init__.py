"""The protocol as a model: every state that it can get into is visited, and every promise is checked in each.

`state` says what there is, `protocol` what can happen next, `properties` what must hold. `search` visits all states.
`runs` and `run_search` do the same for the runs of supervised tasks, in a model of their own.
`planted` and `planted_runs` damage the protocol in one place at a time, to see that the search notices. `binding`
compares the steps with what the trace of a run knows. `page` writes the tables of the docs. `python -m tests.model
--big` searches more than the tests do.
"""
