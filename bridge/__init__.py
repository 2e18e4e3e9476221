"""A bridge between coding agents (Agent Client Protocol) and the Matrix rooms in which people approve what they do."""
