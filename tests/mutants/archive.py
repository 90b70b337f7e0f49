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
    Fault("outbox_tasks/archive/replay_copy.py", "headers.get(REPLAYED_ID, str(original.id))", "str(original.id)",
        REPLAY,
        "A replay of a replay forgets the first original."),
    Fault("outbox_tasks/archive/replay.py", 'act["most"] - passed', 'act["most"]', REPLAY,
        "A replay that goes on forgets how much of its limit is used."),
    Fault("outbox_tasks/archive/replay.py", "min(replay.until or as_of, as_of)", "replay.until or as_of", REPLAY,
        "A replay meets its own copies."),
    Fault("outbox_tasks/archive/replay.py", "(lot and size > LOT_BYTES)", "size > LOT_BYTES", REPLAY,
        "A message larger than a lot is never replayed."),
    Fault("outbox_tasks/archive/replay.py", "after = lot[-1] if len(lot) < len(rows) else end", "after = end",
        REPLAY, "A replay passes over messages of a page of which it has copied the first ones."),
    Fault("outbox_tasks/archive/export.py", "day >= each.date",
        "day == each.date", EXPORT + " -k why_it_writes_nothing",
        "Of a day to come it is said that it has no rows."),
    Fault("outbox_tasks/archive/storage.py", 'if path.endswith(".part"):', "if True:", EXPORT + " -k another_database",
        "The next export removes the files of another database."),
    Fault("outbox_tasks/archive/replay_copy.py", "str(event or id)", "str(id)", REPLAY + " -k another_destination",
        "A copy of a copy forgets its event."),
    Fault("outbox_tasks/archive/replay_copy.py", " if headers.get(name) == former}", "}", REPLAY + " -k stored_task",
        "A replayed task of a chain counts as the root of it."),
    Fault("outbox_tasks/archive/replay_command.py", "time.replace(tzinfo=time.tzinfo or UTC)", "time.astimezone(UTC)",
        REPLAY + " -k without_a_zone", "A time without a zone is taken as a local one."),
]  # fmt: skip
