//! The files that a submission reads. The caller reads them, so that this crate decides without I/O.

/// Reads files of the machine on which spark-usher runs.
pub trait Files {
    /// The content of a file, or why it cannot be read, for people.
    fn read(&self, path: &str) -> Result<Vec<u8>, String>;
    /// The names of the regular files in a folder; empty if there is no such folder.
    fn list(&self, folder: &str) -> Vec<String>;
    /// The absolute form of a path, without links and without `.` and `..`.
    fn absolute(&self, path: &str) -> String;
    /// The files that an absolute path names, sorted: with `*`, `?` or `[…]` in it those that match, without folders. `None` if it has
    /// none of these and there is no such file.
    fn matching(&self, path: &str) -> Result<Option<Vec<String>>, String>;
    /// The attribute `Main-Class` in the manifest of the JAR at this path; `None` if the manifest has none.
    fn main_class(&self, path: &str) -> Result<Option<String>, String>;
}

/// A local file that has to be copied before anything is created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// The absolute path of the file.
    pub from: String,
    /// Where it goes.
    pub to: String,
}
