"""The storage as models, each small enough that every state of it is visited: see docs/storage.md.

`lanes` is where claimers go on reading, `keys` is the order of messages that share a key, statement by statement, and
`deliveries` is who may send what, and what a crash undoes. `explore` visits all states of one. `planted` damages each
in one place at a time, to see that the search notices.
"""
