//! Links from an application's page to its Spark UI and to a history server.

use std::fmt;
use std::str::FromStr;

use super::layout::encoded;
use crate::views::AppReport;

/// The places to which an application's page links; none that is not configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// The Spark UI of a running driver.
    pub spark_ui: Option<LinkTemplate>,
    /// The application in a history server.
    pub history_server: Option<LinkTemplate>,
}

impl Links {
    /// Names and addresses: the Spark UI while the driver runs, the history server always.
    pub(super) fn of(&self, app: &AppReport) -> Vec<(&'static str, String)> {
        let ui = self.spark_ui.as_ref().filter(|_| app.driver_state() == "running");
        let ui = ui.and_then(|template| Some(("Spark UI", template.of(app)?)));
        let history = self.history_server.as_ref().and_then(|template| Some(("History server", template.of(app)?)));
        ui.into_iter().chain(history).collect()
    }
}

/// An `http` or `https` URL with the placeholders `{namespace}`, `{id}`, `{name}` and `{driver}`, such as
/// `https://history.example.com/history/{id}/jobs/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkTemplate(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(Field),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Namespace,
    Id,
    Name,
    Driver,
}

/// The placeholders.
const FIELDS: [(&str, Field); 4] =
    [("namespace", Field::Namespace), ("id", Field::Id), ("name", Field::Name), ("driver", Field::Driver)];

impl LinkTemplate {
    /// The address for an application; `None` if its driver's pod is not known and the address names it.
    fn of(&self, app: &AppReport) -> Option<String> {
        let mut address = String::new();
        for part in &self.0 {
            let field = match part {
                Part::Text(text) => {
                    address.push_str(text);
                    continue;
                }
                Part::Field(Field::Namespace) => &app.namespace,
                Part::Field(Field::Id) => &app.app,
                Part::Field(Field::Name) => app.shown_name(),
                // One of another namespace is stated with it.
                Part::Field(Field::Driver) => {
                    app.driver.pod.as_deref().map(|pod| pod.rsplit('/').next().unwrap_or(pod))?
                }
            };
            // It can end neither the host nor the path.
            address.push_str(&encoded(field).to_string());
        }
        Some(address)
    }
}

impl FromStr for LinkTemplate {
    type Err = String;

    fn from_str(text: &str) -> Result<LinkTemplate, String> {
        let expected = |why: String| {
            format!(
                "expected an http or https URL with {{namespace}}, {{id}}, {{name}} or {{driver}}, such as https://history.example.com/history/{{id}}/: {why}"
            )
        };
        let after = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        let Some(after) = after else { return Err(expected(format!("{text:?} begins with neither"))) };
        if after.split(['/', '?', '#']).next().is_none_or(str::is_empty) {
            return Err(expected(format!("{text:?} names no host")));
        }
        if text.chars().any(|c| c.is_whitespace() || c.is_control() || matches!(c, '"' | '<' | '>' | '\\')) {
            return Err(expected(format!("{text:?} has a character that no URL has")));
        }
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once('{') {
            let Some((name, after)) = after.split_once('}') else {
                return Err(expected(format!("{text:?} lacks a }}")));
            };
            let field = FIELDS.iter().find(|(field, _)| *field == name).map(|(_, field)| *field);
            let Some(field) = field else { return Err(expected(format!("{{{name}}} is not known"))) };
            parts.extend([Part::Text(before.to_owned()), Part::Field(field)]);
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        Ok(LinkTemplate(parts))
    }
}

impl fmt::Display for LinkTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.0 {
            match part {
                Part::Text(text) => f.write_str(text)?,
                Part::Field(field) => {
                    let name = FIELDS.iter().find(|(_, one)| one == field).map_or("", |(name, _)| name);
                    write!(f, "{{{name}}}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_is_a_url_with_known_placeholders() {
        for good in
            ["https://h.example/history/{id}/jobs/", "http://h:8080/{namespace}/{driver}?name={name}", "https://h"]
        {
            assert_eq!(good.parse::<LinkTemplate>().unwrap().to_string(), good);
        }
        for (bad, words) in [
            ("javascript:alert(1)", "begins with neither"),
            ("//h/{id}", "begins with neither"),
            ("https:///x", "names no host"),
            ("https://h/{app}", "{app} is not known"),
            ("https://h/{id", "lacks a }"),
            ("https://h/ x", "no URL has"),
        ] {
            let error = bad.parse::<LinkTemplate>().unwrap_err();
            assert!(error.starts_with("expected an http or https URL") && error.contains(words), "{bad}: {error}");
        }
    }
}
