"""The tools for a store's directory: `kvoffload ls | du | stat | verify | gc | purge`. One file a command."""
