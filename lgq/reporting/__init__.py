"""The report on a results directory: tables, charts, pictures and claims on one HTML page."""
