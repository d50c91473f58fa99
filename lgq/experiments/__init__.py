"""Tables of the LGQ paper: which rows they have (`tables`), at which scale, and how rows become records."""
