"""Everything on one machine: a homeserver, a person, and a scripted agent that asks."""
