"""The archive: exports that are verified, and replays."""

from tests.mutants import Fault

EXPORT, REPLAY = (f"tests/archive/test_{name}.py" for name in ("export", "replay"))

FAULTS = [
    Fault("outbox_tasks/archive/export.py", "    if found != expected:\n", "    if False:\n", EXPORT,
        "A damaged file counts as verified."),
    Fault("outbox_tasks/archive/export.py", 'part["number"] != day.number]', 'part["number"] == day.number]',
        EXPORT,
        "The parts of other days of that date leave the manifest."),
    Fault("outbox_tasks/archive/files.py", 'f"{len(text)}:{text}"', "text", EXPORT,
        "Text that moves to the next column has the same checksum."),
    Fault("outbox_tasks/archive/files.py", "framed.encode() + row[PAYLOAD]", "framed.encode()", EXPORT,
        "The checksum leaves out the payload."),
    Fault("outbox_tasks/archive/replay_copy.py", "if destination == former:", "if True:", REPLAY,
        "A copy for another destination has the id of the original."),
    Fault("outbox_tasks/archive/replay_copy.py", '("id", "root_id")', '("id",)', REPLAY,
        "A new task has the root id of the old one."),
    Fault("outbox_tasks/archive/replay.py", 'act["most"] - passed', 'act["most"]', REPLAY,
        "A replay that goes on forgets how much of its limit is used."),
    Fault("outbox_tasks/archive/replay.py", "min(replay.until or as_of, as_of)", "replay.until or as_of", REPLAY,
        "A replay meets its own copies."),
    Fault("outbox_tasks/archive/storage.py", 'if path.endswith(".part"):', "if True:", EXPORT + " -k another_database",
        "The next export removes the files of another database."),
    Fault("outbox_tasks/archive/replay_command.py", "time.replace(tzinfo=time.tzinfo or UTC)", "time.astimezone(UTC)",
        REPLAY + " -k without_a_zone", "A time without a zone is taken as a local one."),
]  # fmt: skip
