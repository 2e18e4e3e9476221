"""The ledger: what must survive a restart, in SQLite."""
