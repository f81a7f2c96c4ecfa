"""The report over the results in a folder: what each result says, and the page that shows it."""

from powerspherical.experiments.report.page import NAME, ReportError, write_report

__all__ = ["NAME", "ReportError", "write_report"]
