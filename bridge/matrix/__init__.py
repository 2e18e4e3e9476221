"""The Matrix side: what is posted, what is read, and the one client that talks to the homeserver."""
