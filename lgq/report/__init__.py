"""The report on a results directory: tables, charts, pictures and claims on one HTML page.

lgq.report("results", out="report.html")
"""

import sys
from types import ModuleType
from typing import Any


class _Report(ModuleType):
    """The package itself is the function: importing a part of it would replace a function of this name."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Write the report, as `lgq.report.page.write_report` does."""
        from lgq.report.page import write_report

        return write_report(*args, **options)


sys.modules[__name__].__class__ = _Report
