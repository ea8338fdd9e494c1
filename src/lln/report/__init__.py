"""The report: results as one page that needs no network, `lln.report.write(["runs"], "report.html")`."""

from lln.report.write import NoResults, write

__all__ = ["NoResults", "write"]
