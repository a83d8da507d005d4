"""Units on a device with a queue: rounds are captured graphs, chunks are enqueued, nothing waits
but ``collect``."""
