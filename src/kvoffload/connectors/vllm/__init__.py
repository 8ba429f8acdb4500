"""The vLLM connector: translates between vLLM's connector interface and the manager and worker of the core.

Importing this package imports no engine; its modules do.
"""
