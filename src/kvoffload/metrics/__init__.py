"""Every metric of the project, named once."""
