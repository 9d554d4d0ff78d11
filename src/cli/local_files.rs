//! The files of this machine, for a submission.

use std::io::Read;
use std::path::Path;

use glob::MatchOptions;
use zip::ZipArchive;
use zip::result::ZipError;

use usher_submit::Files;

/// The largest manifest that is read, in bytes.
const MAX_MANIFEST: u64 = 1 << 20;

/// See the module's documentation.
pub(super) struct LocalFiles;

impl Files for LocalFiles {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        std::fs::read(path).map_err(|error| error.to_string())
    }

    fn list(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let files = entries.filter(|entry| entry.path().is_file());
        files.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn absolute(&self, path: &str) -> String {
        let whole = std::path::absolute(path).unwrap_or_else(|_| Path::new(path).to_owned());
        whole.canonicalize().unwrap_or(whole).display().to_string()
    }

    fn matching(&self, path: &str) -> Result<Option<Vec<String>>, String> {
        let file = Path::new(path);
        if file.exists() {
            return Ok(Some(if file.is_file() { vec![path.to_owned()] } else { Vec::new() }));
        }
        if !path.contains(['*', '?', '[']) {
            return Ok(None);
        }
        let options =
            MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: false };
        let found = glob::glob_with(path, options).map_err(|error| error.to_string())?;
        let mut all = Vec::new();
        for file in found {
            let file = file.map_err(|error| error.to_string())?;
            if file.is_file() {
                let name = file.to_str().ok_or_else(|| format!("{}: expected UTF-8", file.display()))?;
                all.push(name.to_owned());
            }
        }
        all.sort();
        Ok(Some(all))
    }

    fn main_class(&self, path: &str) -> Result<Option<String>, String> {
        if !Path::new(path).exists() {
            return Err(format!("File file:{path} does not exist"));
        }
        let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
        let mut archive = ZipArchive::new(file).map_err(|error| error.to_string())?;
        let mut manifest = String::new();
        match archive.by_name("META-INF/MANIFEST.MF") {
            Ok(entry) => entry.take(MAX_MANIFEST).read_to_string(&mut manifest).map_err(|error| error.to_string())?,
            Err(ZipError::FileNotFound) => return Err("it has no manifest".to_owned()),
            Err(error) => return Err(error.to_string()),
        };
        Ok(main_class(&manifest))
    }
}

/// The attribute `Main-Class` of the main section: lines end with CR, LF or both, and a line that begins with a space continues the one
/// before (JAR File Specification).
fn main_class(manifest: &str) -> Option<String> {
    let manifest = manifest.replace("\r\n", "\n").replace('\r', "\n").replace("\n ", "");
    let section = manifest.split("\n\n").next()?;
    let class = section.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("Main-Class").then(|| value.trim().to_owned())
    });
    class.filter(|class| !class.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use zip::write::SimpleFileOptions;

    #[test]
    fn main_class_is_read_from_the_main_section() {
        for (manifest, expected) in [
            ("Manifest-Version: 1.0\r\nMain-Class: com.example.Main\r\n\r\n", Some("com.example.Main")),
            ("main-class:  a.B \n", Some("a.B")),
            (
                "Main-Class: com.example.a.very.long.pack\n age.Main\nX: y\n",
                Some("com.example.a.very.long.package.Main"),
            ),
            ("X: y\n\nName: a/\nMain-Class: not.This\n", None),
            ("Main-Class:\n", None),
            ("", None),
        ] {
            assert_eq!(main_class(manifest).as_deref(), expected, "{manifest:?}");
        }
    }

    #[test]
    fn manifest_is_found_in_a_compressed_jar() {
        let folder = tempfile::tempdir().unwrap();
        let jar = |name: &str, entries: &[(&str, &str)]| {
            let path = folder.path().join(name);
            let mut archive = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
            for (name, content) in entries {
                archive.start_file(*name, SimpleFileOptions::default()).unwrap();
                archive.write_all(content.as_bytes()).unwrap();
            }
            archive.finish().unwrap();
            path.display().to_string()
        };
        let manifest = format!("Main-Class: a.B\nX: {}\n", "y".repeat(5000));
        let with = jar("with.jar", &[("a/B.class", "x"), ("META-INF/MANIFEST.MF", &manifest)]);
        assert_eq!(LocalFiles.main_class(&with).unwrap().as_deref(), Some("a.B"));
        let without = jar("without.jar", &[("a/B.class", "x")]);
        assert_eq!(LocalFiles.main_class(&without).unwrap_err(), "it has no manifest");
        let text = folder.path().join("text.jar");
        std::fs::write(&text, "no archive").unwrap();
        assert!(LocalFiles.main_class(text.to_str().unwrap()).is_err());
        assert!(LocalFiles.main_class("/nonexistent.jar").unwrap_err().contains("does not exist"));
    }

    #[test]
    fn patterns_name_files_and_no_folders() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        for name in ["b.txt", "a.txt", "c.jar", "odd[1].txt"] {
            std::fs::write(at(name), "").unwrap();
        }
        std::fs::create_dir(at("d.txt")).unwrap();
        let matching = |name: &str| LocalFiles.matching(&at(name)).unwrap();
        assert_eq!(matching("?.txt").unwrap(), [at("a.txt"), at("b.txt")]);
        assert_eq!(matching("[b-c].*").unwrap(), [at("b.txt"), at("c.jar")]);
        assert_eq!(matching("odd[1].txt").unwrap(), [at("odd[1].txt")], "a file of that name comes first");
        assert_eq!((matching("d.txt"), matching("nope*")), (Some(vec![]), Some(vec![])));
        assert_eq!(matching("nope.txt"), None);
        assert!(LocalFiles.matching(&at("[")).is_err());
    }
}
