"""`kvoffload demo`: a real engine that gets its evicted KV back, measured and shown."""
