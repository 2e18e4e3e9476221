"""The one caller of the core: events in order, one transaction each, then what they bring about (design.md, section 3)."""

from bridge.relay.loop import Relay

__all__ = ["Relay"]
