"""The report: results as one page that needs no network, `lln_lab.report.write(["runs"], "report.html")`."""

from lln_lab.report.write import NoResults, write

__all__ = ["NoResults", "write"]
