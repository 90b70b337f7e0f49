"""The protocol where several transactions meet, as a small model: every state that they can get into is visited, and
every promise is checked in each.

`keys` is the order of messages that share a key, statement by statement.
`explore` visits all states. `test_model` damages a model in one place at a time, to see that the search notices.

What happens between two statements, as when a worker dies, is no matter of a model: the histories of
tests/integration/test_protocol_machine.py run the code itself.
"""
