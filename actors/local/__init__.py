"""All hosts in one process, on one event loop. Start reading at `system`."""
