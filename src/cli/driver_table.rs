//! The table of drivers that `status` and `watch` show.

use super::output::{aligned, one_line};
use usher_runtime::clock;
use usher_spark::text::first_line;
use usher_spark::time::ago;
use usher_submit::submission::DriverStatus;

/// Columns of the table,
const ID: usize = 0;
const STATE: usize = 1;
const CREATED: usize = 2;
const NAME: usize = 3;
const APP: usize = 4;
const DETAIL: usize = 5;
/// and the characters that the last of them has at least; others are left out for it.
const LEAST_DETAIL: usize = 40;
/// With fewer than this it says nothing, and is left out.
const SHORTEST_DETAIL: usize = 16;

/// The longest detail in a row.
const MAX_DETAIL: usize = 160;

/// The lines of a table of drivers, each with its state. They are at most as wide as this.
pub(super) fn lines<'d>(
    drivers: impl Iterator<Item = (&'d DriverStatus, &'d str)>,
    width: usize,
    has_colors: bool,
) -> Vec<String> {
    let now = clock::now();
    let head = ["ID", "STATE", "CREATED", "NAME", "APP", "DETAIL"].map(str::to_owned).to_vec();
    let mut states = vec![""];
    let row = |(driver, state): (&DriverStatus, &'d str)| {
        states.push(state);
        vec![
            driver.submission_id.clone(),
            state.to_owned(),
            driver.created.as_deref().map_or_else(String::new, |time| ago(time, now)),
            driver.shown_name().to_owned(),
            driver.app_id.clone().unwrap_or_default(),
            one_line(&first_line(&driver.detail(), MAX_DETAIL)),
        ]
    };
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(drivers.map(row)).collect();
    let widest = |column: &usize| rows.iter().filter_map(|row| row.get(*column)).map(|cell| cell.chars().count()).max();
    let before = |columns: &[usize]| columns.iter().filter_map(widest).map(|width| width + 2).sum::<usize>();
    // Where there is no room for all: the detail says most, if it says anything.
    let max: [&[usize]; 4] =
        [&[ID, STATE, CREATED, NAME, APP], &[ID, STATE, CREATED, NAME], &[ID, STATE, CREATED], &[ID, STATE]];
    let fits = |columns: &&[usize], detail: usize| before(columns).saturating_add(detail) <= width;
    let columns = match max
        .into_iter()
        .find(|columns| fits(columns, LEAST_DETAIL))
        .or(Some(max[3]))
        .filter(|columns| fits(columns, SHORTEST_DETAIL))
    {
        Some(columns) => [columns, &[DETAIL]].concat(),
        None if before(max[2]) <= width + 2 => max[2].to_vec(),
        None => max[3].to_vec(),
    };
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| columns.iter().filter_map(|column| row.get(*column).cloned()).collect()).collect();
    let begin = rows.iter().filter_map(|row| row.first()).map(|id| id.chars().count()).max().unwrap_or_default() + 2;
    let painted = |(line, state): (String, &str)| {
        let line = first_line(&line, width);
        if has_colors { painted(&line, begin, state) } else { line }
    };
    aligned(&rows, 0).into_iter().zip(states).map(painted).collect()
}

/// A line whose state, at this character, is in its color.
pub(super) fn painted(line: &str, begin: usize, state: &str) -> String {
    let at = |chars: usize| line.char_indices().nth(chars).map_or(line.len(), |(at, _)| at);
    let (before, rest) = line.split_at(at(begin));
    match (color(state), rest.strip_prefix(state)) {
        (Some(color), Some(after)) => format!("{before}\x1b[{color}m{state}\x1b[0m{after}"),
        _ => line.to_owned(),
    }
}

/// The color of a state, as a parameter of SGR; `None` for a state that is nothing special.
fn color(state: &str) -> Option<u8> {
    Some(match state {
        "failed" | "deleted" | "leftover" => 31,
        lacks if lacks.starts_with("lacks ") => 31,
        "succeeded" | "ok" => 32,
        "pending" | "terminating" | "trouble" | "starting" | "ending" => 33,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn driver(name: &str, phase: &str) -> DriverStatus {
        let pod = json!({"metadata": {"namespace": "n", "name": name, "uid": name, "labels": {"spark-role": "driver"}},
            "spec": {"containers": [{"name": "spark-kubernetes-driver"}]},
            "status": {"phase": phase, "reason": "Evicted\nx  forged"}});
        DriverStatus::read(&pod.to_string()).unwrap()
    }

    #[test]
    fn only_states_have_colors_and_a_cut_line_has_no_half_of_one() {
        let drivers = [driver("a", "Failed"), driver("longer", "Running")];
        let draw = |width, has_colors| lines(drivers.iter().map(|driver| (driver, driver.state)), width, has_colors);
        let plain = draw(200, false);
        assert_eq!(plain.len(), 3, "{plain:?}");
        assert!(plain.iter().all(|line| !line.contains('\x1b')), "{plain:?}");
        assert!(plain[1].starts_with("n:a       failed"), "{plain:?}");
        let colored = draw(200, true);
        assert!(colored[1].starts_with("n:a       \x1b[31mfailed\x1b[0m"), "{colored:?}");
        assert_eq!((&colored[0], &colored[2]), (&plain[0], &plain[2]));
        assert_eq!(draw(12, true)[1], "n:a       f…");
        assert!(!draw(60, false)[0].contains("APP") && draw(60, false)[1].contains("Evicted"), "{:?}", draw(60, false));
        // No column is empty, and none is too narrow to say anything.
        let long = [driver(&"x".repeat(40), "Failed")];
        let table = lines(long.iter().map(|driver| (driver, driver.state)), 60, false);
        assert!(table[0].ends_with("  STATE   CREATED") && !table[1].contains('…'), "{table:?}");
        assert_eq!(draw(50, false)[0], "ID        STATE    DETAIL");
        let table = lines(long.iter().map(|driver| (driver, driver.state)), 54, false);
        assert!(table[0].ends_with("  STATE") && table[1].ends_with("  failed"), "{table:?}");
    }
}
