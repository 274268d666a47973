"""The parts of a report, each built from a `Context`; `reports.model` puts them in order."""
