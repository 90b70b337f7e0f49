"""The protocol as small models: every state that they can get into is visited, and every promise is checked in each.

`pipe/keys` is the order of messages that share a key, statement by statement; `pipe/hops` is claim, singles, drains and
settle, with all that gets lost on the way; `pipe/lanes` is where claimers go on reading. `runs` are supervised tasks,
and `feeds` has the bridges. `explore` visits all states. The `planted` files damage each model in one place at a time,
to see that the search notices.
"""
