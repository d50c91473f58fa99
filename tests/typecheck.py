"""The run-time type checker of the tests: beartype, which accepts an int as a float."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
