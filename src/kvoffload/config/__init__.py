"""Configuration boundary: frozen dataclasses and the parsing of foreign options. Standard library only."""
