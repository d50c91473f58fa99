"""What goes wrong with weights, in words for the user."""


class WeightsError(ValueError):
    """Weights that are absent, damaged, unknown or out of reach; the message says the way out."""
