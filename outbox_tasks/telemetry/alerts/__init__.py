"""Telling people of what needs them: `teller` is told by the relay, `board` and `statements` are the table by which the
cluster tells each thing once, `webhook` is what people read, and where it is posted."""
