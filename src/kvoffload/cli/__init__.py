"""The `kvoffload` command: one file a subcommand."""
