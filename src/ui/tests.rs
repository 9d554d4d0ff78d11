//! Pages from reports.
