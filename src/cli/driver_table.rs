//! The table of drivers that `status` and `watch` show.

use crate::runtime::clock;
use crate::submission::DriverStatus;
use crate::text::first_line;
use crate::views::ago;

/// The longest detail in a row.
const MAX_DETAIL: usize = 160;

/// A table of drivers, each with its state.
pub(super) fn rows<'d>(drivers: impl Iterator<Item = (&'d DriverStatus, &'d str)>) -> Vec<Vec<String>> {
    let now = clock::now();
    let head = ["ID", "STATE", "CREATED", "APP", "DETAIL"].map(str::to_owned).to_vec();
    let row = |(driver, state): (&DriverStatus, &str)| {
        vec![
            driver.submission_id.clone(),
            state.to_owned(),
            driver.created.as_deref().map_or_else(String::new, |time| ago(time, now)),
            driver.app_id.clone().unwrap_or_default(),
            first_line(&driver.detail(), MAX_DETAIL),
        ]
    };
    std::iter::once(head).chain(drivers.map(row)).collect()
}
