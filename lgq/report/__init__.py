"""What a run shows: pictures and plots, drawn from arrays and records alone."""
