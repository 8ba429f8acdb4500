"""The capacity planner: bytes of KV from a model's configuration, what fits where, what more room is worth."""
