"""`kvoffload doctor`: is this machine fit for an engine with kvoffload? Found out before one is started."""
