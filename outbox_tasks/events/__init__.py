"""Typed events: what the payloads of an event type are. They are checked at publish; a gate in CI refuses changes that
break consumers."""
