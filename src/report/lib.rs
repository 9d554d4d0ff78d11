//! What people see: the reports of the debug port and of the command line ([`views`]), and the same as HTML ([`ui`]).

pub mod ui;
pub mod views;
