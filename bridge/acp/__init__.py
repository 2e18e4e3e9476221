"""The client side of the Agent Client Protocol: processes, JSON-RPC, sessions, permission requests."""
