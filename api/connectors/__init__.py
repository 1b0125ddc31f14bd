"""Connectors: where records come from and where they go. Start reading at `collection`, then `files`."""
