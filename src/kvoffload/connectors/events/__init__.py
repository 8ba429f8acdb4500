"""An engine's KV events → a trace of what missed its device cache (`kvoffload record`). No engine is imported here.

The engine needs no connector of ours, only its own publisher. So this serves those who do not offload yet.
"""
