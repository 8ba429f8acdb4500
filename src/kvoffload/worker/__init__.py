"""Worker side: carries out copy jobs between the engine's pages and the host region."""
