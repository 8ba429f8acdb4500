"""KV-cache offloading for LLM serving engines. See README.md for users, ARCHITECTURE.md for maintainers."""

__version__ = "0.1.0"
