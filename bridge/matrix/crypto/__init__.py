"""The keys of one device: no network, no event of the bridge. The only package beside `client` that knows nio."""
