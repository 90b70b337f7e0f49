"""What may happen to a key beside takes: settles, leases that run out, and people."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.explore import Kind, Step
from tests.model.key_state import BOOKS, NEVER, NOW, WAITS, Change, Key, Row, State, Write

ALL = frozenset({"settle", "retry", "expire", "cancel", "redrive", "try", "discard"})


class Changes:
    """The transactions of all others than takes. `test_model` overrides a method at a time."""

    skip: bool
    fails: bool
    verbs: frozenset[str]

    def changes(self, state: State) -> Iterator[Step]:
        """Every transaction that may begin now. It locks its messages."""
        batch = [n for n, row in enumerate(state.rows) if row.place == "leased"]
        if batch and not any(state.locks(n) for n in batch):
            for change in self._settles(state, batch):
                yield self._begun(state, change)
        for n, row in enumerate(state.rows):
            if not state.locks(n):
                yield from self._acts(state, n, row)

    def _acts(self, state: State, n: int, row: Row) -> Iterator[Step]:
        told, over = f"m{n + 1}", ((n, row._replace(place="over")),)
        if row.place in ("ready", "held"):
            stage = "look" if row.place == "held" else "open"
            yield self._begun(state, Change("cancel", f"the application cancels {told}", stage, over), "person")
            if row.place == "held" and n in state.early:
                yield self._begun(state, Change("try", f"a person tries {told} now", "key", ((n, row),)), "person")
        elif row.place == "dead":
            held = ((n, row._replace(place="held")),)
            yield self._begun(state, Change("redrive", f"a person redrives {told}", "key", held), "person")
            yield self._begun(state, Change("discard", f"a person discards {told}", "key", over), "person")

    def _begun(self, state: State, change: Change, kind: Kind = "work") -> Step:
        if change.verb not in self.verbs:
            return Step(change.what, state, kind)
        return Step(change.what, _with(state, change._replace(seen=state.key if change.stage == "key" else None)), kind)

    def _settles(self, state: State, batch: list[int]) -> Iterator[Change]:
        """Each way in which a lease ends. All of them remove the lease first: who comes later finds none."""
        over = {n: state.rows[n]._replace(place="over") for n in batch}
        held = {n: state.rows[n]._replace(place="held") for n in batch}
        yield Change("settle", "the batch is settled as sent", "key", tuple(over.items()))
        yield Change("expire", "the lease runs out", "key", tuple(held.items()), tuple(batch))
        if len(batch) == 1:
            yield Change("retry", "Celery retries the single", "key", ((batch[0], state.rows[batch[0]]),))
        for place, n in enumerate(batch if self.fails else ()):
            before, behind = {k: over[k] for k in batch[:place]}, {k: held[k] for k in batch[place + 1 :]}
            waits = {**before, n: held[n], **behind}
            yield Change("settle", f"m{n + 1} fails, and waits", "key", tuple(waits.items()), (n, *behind), n)
            dead = {**before, n: Row("dead", passed=self.skip), **behind}
            back, due = ((*behind,), NOW) if self.skip else ((n, *behind), NEVER)
            yield Change("settle", f"m{n + 1} is dead", "key", tuple(dead.items()), back, due)

    def go_on(self, state: State, change: Change) -> Iterator[Step]:
        """The next step of a transaction."""
        users = change.verb == "cancel"
        if change.stage == "look":
            yield self._look(state, change)
        elif change.stage == "key" and not state.locks_key(but=change):
            has = change._replace(stage="open", seen=None, write=self.write(state, change))
            yield Step(f"the {change.verb} has the key's row", _with(state, has, change))
        elif change.stage == "key":
            hurt = WAITS if change.verb in ("settle", "retry", "expire") and users_lock(state) else None
            yield Step(f"the {change.verb} waits for the key's row", state, hurt=hurt)
        else:
            lost = {"over", "leased"} if users else {"over"}
            hurt = BOOKS if any(state.rows[n].place in lost for n, _ in change.rows) else None
            yield Step(f"the {change.verb} commits", _committed(state, change), hurt=hurt)
        if users:
            yield Step("the application rolls back", _without(state, change))
        elif change.stage == "open":
            yield Step(f"the {change.verb} is undone", _without(state, change), "fault")

    def _look(self, state: State, change: Change) -> Step:
        """The second statement of a cancel. If nobody has locked the key's row, it has it at once."""
        if not self.frees(state, change.rows[0][0]):
            return Step("the cancel leaves the key alone", _with(state, change._replace(stage="open"), change))
        if state.locks_key(but=change):
            return Step("the cancel begins to wait for the key", _with(state, change._replace(stage="key"), change))
        has = change._replace(stage="open", write=self.write(state, change))
        return Step("the cancel has the key's row", _with(state, has, change))

    def frees(self, state: State, n: int) -> bool:
        """Whether a cancel changes the key's row: only if the key waits for this message."""
        key = state.key
        waits = key is not None and not key.leased and key.due != NEVER and not state.is_due(key)
        return waits and not any(row.place == "held" for row in state.rows[:n])

    def write(self, state: State, change: Change) -> Write | None:
        """What a transaction makes of the newest version of the key's row."""
        return getattr(self, f"_{change.verb}")(state, change, state.key)  # type: ignore[no-any-return]

    def _settle(self, state: State, change: Change, key: Key) -> Write:
        if not (self.more(change, key) or change.back):
            return Write(None, anew=True)
        return Write(Key(False, self.due(change, key), True, min([key.first, *change.back])), anew=True)

    def due(self, change: Change, key: Key) -> int:
        """When a settle wants the key to be looked at: at once if a redrive has said so meanwhile."""
        return min(change.due, key.due)

    def more(self, change: Change, key: Key) -> bool:
        """What a settle reads: the newest version."""
        return key.more

    def _retry(self, state: State, change: Change, key: Key) -> Write | None:
        return Write(key._replace(renewed=not key.renewed))

    def _expire(self, state: State, change: Change, key: Key) -> Write | None:
        return Write(Key(more=True, first=min([key.first, *change.back])))

    def _redrive(self, state: State, change: Change, key: Key | None) -> Write | None:
        n = change.rows[0][0]
        if key is None:
            return Write(Key(more=True, first=n))
        return Write(key._replace(due=NOW, more=True, first=min(key.first, n)))

    def _try(self, state: State, change: Change, key: Key | None) -> Write | None:
        n = change.rows[0][0]
        if key is None:
            return Write(Key(more=True, first=n))
        due = key.due if key.leased or key.due == NEVER else NOW
        return Write(key._replace(due=due, more=True, first=min(key.first, n)))

    def _discard(self, state: State, change: Change, key: Key | None) -> Write | None:
        return None if key is None else Write(key if key.leased else key._replace(due=NOW))

    def _cancel(self, state: State, change: Change, key: Key | None) -> Write | None:
        return self._discard(state, change, key)  # a row with a token stays as it is, and locked


def users_lock(state: State) -> bool:
    """Whether a transaction of the application has locked the key's row."""
    return any(change.verb == "cancel" and change.write for change in state.changes)


def _committed(state: State, change: Change) -> State:
    after = dict(change.rows)
    done = _without(state, change)
    done = done._replace(rows=tuple(after.get(n, row) for n, row in enumerate(state.rows)))
    if change.verb == "try":
        done = done._replace(early=done.early - frozenset(after))
    if change.verb == "settle" and change.due not in (NOW, NEVER):
        done = done._replace(early=done.early | {change.due})
    if change.write is None:
        return done
    takes = done.takes
    if change.write.anew:
        takes = tuple(take._replace(gone=take.key is not None) for take in takes)
    return done._replace(key=change.write.key, takes=takes)


def _with(state: State, change: Change, former: Change | None = None) -> State:
    left = _without(state, former) if former else state
    return left._replace(changes=tuple(sorted((*left.changes, change), key=repr)))


def _without(state: State, change: Change) -> State:
    others = list(state.changes)
    others.remove(change)
    return state._replace(changes=tuple(others))
