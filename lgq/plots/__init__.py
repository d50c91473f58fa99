"""Pictures and plots as PNG, drawn from arrays alone."""
