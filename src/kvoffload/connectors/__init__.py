"""The only place where an engine is imported: one package an engine."""
