"""Networks around the quantizer, each in a file of its own."""
