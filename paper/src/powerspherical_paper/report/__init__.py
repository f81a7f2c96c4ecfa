"""Describe the results in a folder, and write them as one HTML page."""

from powerspherical_paper.report.findings import Finding, Table
from powerspherical_paper.report.page import NAME, ReportError, has_results, read, write_report

__all__ = ["NAME", "Finding", "ReportError", "Table", "has_results", "read", "write_report"]
