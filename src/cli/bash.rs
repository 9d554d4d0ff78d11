//! What bash passes to a completer, and expects of it: it splits words at `=` and `:` (`COMP_WORDBREAKS`), asks for what follows the last
//! of them, and replaces only that.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;

use clap::Command;
use clap_complete::env::{Bash, EnvCompleter};

/// clap's script for bash, answered for whole words.
#[derive(Debug)]
pub(super) struct WholeWords;

impl EnvCompleter for WholeWords {
    fn name(&self) -> &'static str {
        Bash.name()
    }

    fn is(&self, name: &str) -> bool {
        Bash.is(name)
    }

    fn write_registration(
        &self,
        var: &str,
        name: &str,
        bin: &str,
        completer: &str,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        Bash.write_registration(var, name, bin, completer, out)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "variables that clap's script sets for one completion, and no settings"
    )]
    fn write_complete(
        &self,
        command: &mut Command,
        words: Vec<OsString>,
        folder: Option<&Path>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let index = std::env::var("_CLAP_COMPLETE_INDEX").ok().and_then(|index| index.parse().ok()).unwrap_or_default();
        let separator = std::env::var("_CLAP_IFS").unwrap_or_else(|_| "\n".to_owned());
        write!(out, "{}", completed(command, &words, index, folder)?.join(&separator))
    }
}

/// The candidates for the word at `index`, each without what bash keeps of it.
fn completed(
    command: &mut Command,
    words: &[OsString],
    index: usize,
    folder: Option<&Path>,
) -> io::Result<Vec<String>> {
    let (before, after) = words.split_at_checked(index + 1).unwrap_or((words, &[]));
    let mut whole = joined(before);
    let at = whole.len().saturating_sub(1);
    let part = before.last().map(|part| part.to_string_lossy()).unwrap_or_default();
    let typed = whole.last().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    let kept = typed.strip_suffix(&*part).unwrap_or_default();
    whole.extend(after.iter().cloned());
    let found = clap_complete::engine::complete(command, whole, at, folder)?;
    let text = |value: &OsStr| value.to_string_lossy().into_owned();
    Ok(found
        .iter()
        .map(|one| text(one.get_value()))
        .map(|word| word.strip_prefix(kept).unwrap_or(&word).to_owned())
        .collect())
}

/// The words of a command line that bash has split at `=` and `:`, which it passes as words of their own.
pub(super) fn joined(words: &[OsString]) -> Vec<OsString> {
    let mut all: Vec<OsString> = Vec::new();
    let mut continues = false;
    for word in words {
        let splits = word == "=" || word == ":";
        match all.last_mut().filter(|_| splits || continues) {
            Some(last) => last.push(word),
            None => all.push(word.clone()),
        }
        continues = splits;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn word_that_bash_has_split_is_completed_as_a_whole() {
        let values = |line: &str, index: usize| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let mut command = super::super::Cli::command();
            command.build();
            completed(&mut command, &words, index, None).unwrap()
        };
        assert_eq!(values("spark-usher apps --output = y", 4), ["yaml"]);
        assert_eq!(values("spark-usher apps --output = y -A", 4), ["yaml"]);
        assert_eq!(values("spark-usher apps --output y", 3), ["yaml"]);
        assert_eq!(values("spark-usher config ch", 2), ["check"]);
        assert!(values("spark-usher why team-a : n", 4).is_empty(), "no cluster is named");
    }
}
